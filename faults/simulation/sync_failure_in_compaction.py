"""Faults X3 and X4 during compaction: a sync, a write or a rename fails once, or the disk is full for a while.

The fault affects the files that compaction writes. Clients must get no error, because their records are written to
other files. Then the process is killed or the power fails, and all acknowledged records must exist. Each time that the
fault strikes is a hit.
"""

from __future__ import annotations

import errno
import random
from collections.abc import Callable, Sequence

from faults.disk.fault import Crash, Operation
from faults.disk.faulty_files import Fault
from faults.outcome import Outcome
from faults.simulation.compaction import CompactionScene
from faults.simulation.machine import Machine
from faults.simulation.partition_oracle import Findings
from faults.simulation.unprotected_compaction import without_protection

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
    findings = Findings()
    with without_protection(None if protected else without):
        machine = Machine(seed, findings.report_problem)
        scene = CompactionScene(seed, machine, findings)
        machine.run_process(lambda: scene.run_broker(steps=20))
        for number in range(rounds + 20):
            if findings.problems or (number >= rounds and outcome.hits):
                break
            fault = _inject_fault(machine, rng, _AIMS if protected else _AIMS[:1])
            machine.on_change = _crash_after_fault(scene, fault, rng.choice((2, 8, 30, 1000)))
            machine.run_process(lambda: scene.run_broker(steps=rng.randint(20, 50), stop=rng.random() < 0.5))
            outcome.hits += fault.hits
            machine.files.heal()
            machine.end(rng.choice(("power loss", "kill")))
        if not findings.problems:
            machine.run_process(lambda: scene.run_broker(steps=10))
    findings.report_to(outcome)
    outcome.figures = {"compactions": scene.compactions, "trace": machine.trace}
    return outcome


def _crash_after_fault(scene: CompactionScene, fault: Fault, operations: int) -> Callable[[Operation], None]:
    """Crash the process this many operations after the fault, unless the process ends earlier."""
    operations_left = operations

    def on_operation(operation: Operation) -> None:
        nonlocal operations_left
        scene.note(operation)
        operations_left -= fault.hits
        if operations_left < 0:
            raise Crash("crashed soon after the fault")

    return on_operation


def _inject_fault(machine: Machine, rng: random.Random, aims: Sequence[tuple[str, str]]) -> Fault:
    kind, path = rng.choice(aims)
    nth = rng.randint(1, 3)
    if kind == "forget":
        return machine.files.forget_sync(path=path, nth=nth)
    if kind == "short":
        return machine.files.short_write(path=path, nth=nth)
    return machine.files.fail(kind, path=path, nth=nth, error=rng.choice((errno.EIO, errno.ENOSPC)))
