"""Fault X2, power loss at any file operation of a broker: unsynced writes are lost, torn or reordered;
unsynced changes of directories (a file was created, renamed or removed) are lost or reordered.

A run starts a broker many times on one simulated disk. Each process crashes at an operation that the seed chooses:
during the first start, a recovery, a Produce request, the end of a transaction, a segment roll, retention, a topic
change, a journal snapshot or a clean stop. Most crashes are power losses. Some are kills, after which the next process
sees data that might not be on the disk yet. A power loss is a hit if it struck a start, a stop, or requests in flight.
"""

from __future__ import annotations

import random

from faults.outcome import Outcome
from faults.simulation.journal import JournalScene
from faults.simulation.machine import Machine
from faults.simulation.partition_oracle import Findings
from faults.simulation.scene import Scene
from faults.simulation.unprotected import without_protection
from headrace.broker.settings import Durability

__all__ = ["UNPROTECTED", "run"]

FAULT = "X2"
UNPROTECTED = {
    "syncs": r"^\d+ lost$",
    "sync-before-mark": r"cannot be read, error 2",
    "sync-before-ack": r"^\d+ lost$",
    "sync-before-serving": r"cannot be read, error 2",
    "directory-sync": r"^\d+ lost$|cannot be read|is missing",
    "memory-of-aborted": r"visible to readers",
    "memory-of-open": r"visible to readers",
    "sync-before-end": r"got error (47|90)|was committed, but is not visible to readers",
}


def run(seed: int, *, protected: bool = True, without: str = "syncs", processes: int = 12) -> Outcome:
    rng = random.Random(f"{FAULT} {seed}")
    outcome = Outcome(FAULT, seed)
    findings = Findings()
    syncs_are_ignored = not protected and without == "syncs"
    with without_protection(None if protected else without):
        machine = Machine(seed, findings.report_problem, syncs_are_ignored=syncs_are_ignored)
        durability: Durability = rng.choice(("synced", "synced", "synced", "os"))
        scene = Scene(seed, machine, findings, durability=durability, transactional_writers=2)
        for _ in range(processes):
            if not findings.problems:
                _run_and_crash(scene, rng, outcome)
        # The last start is undisturbed.
        if not findings.problems:
            machine.run_process(lambda: scene.run_broker(steps=4, settle=True))
        journal_machine = Machine(seed, findings.report_problem, syncs_are_ignored=syncs_are_ignored)
        journal = JournalScene(seed, journal_machine, findings)
        for _ in range(processes // 2):
            if not findings.problems:
                _write_and_crash(journal, rng, outcome)
    findings.report_to(outcome)
    outcome.figures = {
        "operations": machine.changes + journal_machine.changes,
        "starts": scene.starts,
        "batches": sum(len(oracle.sent) for oracle in scene.oracles.values()),
        "acked": sum(oracle.acked for oracle in scene.oracles.values()),
        "committed": scene.transactions.count("committed"),
        "aborted": scene.transactions.count("aborted"),
        "journal_writes": journal.calls,
        "trace": machine.trace ^ journal_machine.trace,
    }
    return outcome


def _run_and_crash(scene: Scene, rng: random.Random, outcome: Outcome) -> None:
    end_at = rng.choice((rng.randint(1, 60), rng.randint(1, 300), rng.randint(1, 1000)))
    stops = rng.random() < 0.4
    scene.machine.run_process(lambda: scene.run_broker(steps=rng.randint(3, 30), stop=stops), end_at=end_at)
    if rng.random() < 0.75:
        outcome.hits += scene.phase in ("starting", "stopping") or scene.in_flight > 0
        scene.power_lost()
        scene.machine.end("power loss")
    else:
        scene.machine.end("kill")


def _write_and_crash(journal: JournalScene, rng: random.Random, outcome: Outcome) -> None:
    stops = rng.random() < 0.3
    journal.machine.run_process(
        lambda: journal.run_until_stop_or_crash(rng.randint(2, 15), stop=stops),
        end_at=rng.choice((rng.randint(1, 20), rng.randint(1, 200))),
    )
    power_lost = rng.random() < 0.75
    outcome.hits += power_lost and journal.in_flight > 0
    journal.machine.end("power loss" if power_lost else "kill")
