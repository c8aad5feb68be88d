"""X2, power loss, and kills on the same disk, while everything is being compacted.

A run takes one simulated disk through many lives, each of which ends at an operation of the seed's choice. A power loss
counts as a hit if a compaction was under way.
"""

from __future__ import annotations

import random

from bench.faults.outcome import Outcome
from bench.faults.sim_book import Objections
from bench.faults.sim_compaction import CompactionScene
from bench.faults.sim_machine import Machine
from bench.faults.unprotected_compaction import without_protection

__all__ = ["UNPROTECTED", "run"]

FAULT = "X2"
UNPROTECTED = {
    "decision": r"cannot be read at \d+ of \d+: error 2",
    "sync-of-the-new-file": r"cannot be read at \d+ of \d+: error 2",
    "wide-hash": r"the newest record of .* is gone",
    "told-deletions": r"is gone, and readers are told",
    "both-marks": r"^\d+ lost$",
}


def run(seed: int, *, protected: bool = True, without: str = "decision", lives: int = 10) -> Outcome:
    rng = random.Random(f"{FAULT} compaction {seed}")
    outcome = Outcome(FAULT, seed)
    objections = Objections()
    with without_protection(None if protected else without):
        machine = Machine(seed, objections.object)
        scene = CompactionScene(seed, machine, objections)
        for life in range(lives + 20):
            if objections.problems or (life >= lives and outcome.hits):
                break
            end_at = rng.choice((rng.randint(1, 100), rng.randint(1, 400), rng.randint(1, 1200)))
            steps, stops = rng.randint(10, 60), rng.random() < 0.4
            machine.life(lambda steps=steps, stops=stops: scene.live(steps=steps, stop=stops), end_at=end_at)  # type: ignore[misc]
            lost_power = rng.random() < 0.7
            outcome.hits += lost_power and scene.was_compacting
            machine.end("power loss" if lost_power else "kill")
        if not objections.problems:
            machine.life(lambda: scene.live(steps=10))
    objections.tell(outcome)
    outcome.figures = {
        "operations": machine.changes,
        "compactions": scene.compactions,
        "records": sum(len(table.sent) for table in scene.tables.values()),
        "trace": machine.trace,
    }
    return outcome
