"""Fault X2, power losses and kills during compaction, on one simulated disk.

A run starts a broker many times on one simulated disk. Each process ends at an operation that the seed chooses. A power
loss is a hit if a compaction was running.
"""

from __future__ import annotations

import random
from functools import partial

from faults.outcome import Outcome
from faults.simulation.compaction import CompactionScene
from faults.simulation.machine import Machine
from faults.simulation.partition_oracle import Findings
from faults.simulation.unprotected_compaction import without_protection

__all__ = ["UNPROTECTED", "run"]

FAULT = "X2"
UNPROTECTED = {
    "durable-swap-record": r"cannot be read at \d+ of \d+: error 2",
    "sync-of-the-new-file": r"cannot be read at \d+ of \d+: error 2",
    "wide-hash": r"the newest record of .* is missing",
    "announced-deletions": r"is missing, but the broker reports",
    "both-mark-slots": r"^\d+ lost$",
}


def run(
    seed: int, *, protected: bool = True, without: str = "durable-swap-record", processes: int = 10
) -> Outcome:
    rng = random.Random(f"{FAULT} compaction {seed}")
    outcome = Outcome(FAULT, seed)
    findings = Findings()
    with without_protection(None if protected else without):
        machine = Machine(seed, findings.report_problem)
        scene = CompactionScene(seed, machine, findings)
        for number in range(processes + 20):
            if findings.problems or (number >= processes and outcome.hits):
                break
            end_at = rng.choice((rng.randint(1, 100), rng.randint(1, 400), rng.randint(1, 1200)))
            steps, stops = rng.randint(10, 60), rng.random() < 0.4
            work = partial(scene.run_broker, steps=steps, stop=stops)
            machine.run_process(work, end_at=end_at)
            lost_power = rng.random() < 0.7
            outcome.hits += lost_power and scene.was_compacting
            machine.end("power loss" if lost_power else "kill")
        if not findings.problems:
            machine.run_process(lambda: scene.run_broker(steps=10))
    findings.report_to(outcome)
    outcome.figures = {
        "operations": machine.changes,
        "compactions": scene.compactions,
        "records": sum(len(table.sent) for table in scene.tables.values()),
        "trace": machine.trace,
    }
    return outcome
