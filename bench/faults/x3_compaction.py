"""X3 and X4 while everything is being compacted: a sync, a write or a name fails once, or the disk is full for a while.

The fault is aimed at the files that compaction writes. Clients must not notice: what they produce goes to other files.
Then the process is killed or the power goes, and all must be there. A run counts as hit if the fault struck.
"""

from __future__ import annotations

import errno
import random
from collections.abc import Callable, Sequence

from bench.faults.outcome import Outcome
from bench.faults.sim_book import Objections
from bench.faults.sim_compaction import CompactionScene
from bench.faults.sim_machine import Machine
from bench.faults.unprotected_compaction import without_protection
from headrace.testing.faults import Crash, Operation
from headrace.testing.faulty_files import Fault

__all__ = ["UNPROTECTED", "run"]

FAULT = "X3"
UNPROTECTED = {"failed-sync-counts": r"cannot be read at \d+ of \d+: error 2"}
_AIMS = (
    ("forget", "*.log.compacted"),
    ("sync", "*.log.compacted"),
    ("write", "*.log.compacted"),
    ("short", "*.log.compacted"),
    ("create", "*.compacted"),
    ("write", "*.swap.new"),
    ("rename", "*.swap.new"),
    ("rename", "*.log.compacted"),
    ("remove", "*.log"),
    ("remove", "*.swap"),
    ("write", "*compacted.new"),
)


def run(
    seed: int, *, protected: bool = True, without: str = "failed-sync-counts", rounds: int = 4
) -> Outcome:
    rng = random.Random(f"{FAULT} compaction {seed}")
    outcome = Outcome(FAULT, seed)
    objections = Objections()
    with without_protection(None if protected else without):
        machine = Machine(seed, objections.object)
        scene = CompactionScene(seed, machine, objections)
        machine.life(lambda: scene.live(steps=20))
        for number in range(rounds + 20):
            if objections.problems or (number >= rounds and outcome.hits):
                break
            fault = _aimed(machine, rng, _AIMS if protected else _AIMS[:1])
            machine.on_change = _ending_soon(scene, fault, rng.choice((2, 8, 30, 1000)))
            machine.life(lambda: scene.live(steps=rng.randint(20, 50), stop=rng.random() < 0.5))
            outcome.hits += fault.hits
            machine.files.heal()
            machine.end(rng.choice(("power loss", "kill")))
        if not objections.problems:
            machine.life(lambda: scene.live(steps=10))
    objections.tell(outcome)
    outcome.figures = {"compactions": scene.compactions, "trace": machine.trace}
    return outcome


def _ending_soon(scene: CompactionScene, fault: Fault, operations: int) -> Callable[[Operation], None]:
    """The process ends so many operations behind the fault, if it lives that long."""
    left = operations

    def note(operation: Operation) -> None:
        nonlocal left
        scene.note(operation)
        left -= fault.hits
        if left < 0:
            raise Crash("soon behind the fault")

    return note


def _aimed(machine: Machine, rng: random.Random, aims: Sequence[tuple[str, str]]) -> Fault:
    kind, path = rng.choice(aims)
    nth = rng.randint(1, 3)
    if kind == "forget":
        return machine.files.forget_sync(path=path, nth=nth)
    if kind == "short":
        return machine.files.short_write(path=path, nth=nth)
    return machine.files.fail(kind, path=path, nth=nth, error=rng.choice((errno.EIO, errno.ENOSPC)))
