"""X2, power loss: unsynced writes and names are dropped, torn and reordered, at any operation of a broker's life.

A run takes one simulated disk through many lives. Each ends at an operation of the seed's choice: in a first start, a
recovery, a produce, the end of a transaction, a roll, retention, a change of topics, a snapshot of a journal or a clean
stop. Most ends are power losses; some are kills, after which the next process sees what the disk may not have yet. A
power loss counts as a hit if it struck a start, a stop, or requests under way.
"""

from __future__ import annotations

import random

from bench.faults.outcome import Outcome
from bench.faults.sim_book import Objections
from bench.faults.sim_journal import JournalScene
from bench.faults.sim_machine import Machine
from bench.faults.sim_scene import Scene
from bench.faults.sim_unprotected import without_protection

__all__ = ["UNPROTECTED", "run"]

FAULT = "X2"
UNPROTECTED = {
    "syncs": r"^\d+ lost$",
    "sync-before-mark": r"cannot be read, error 2",
    "sync-before-ack": r"^\d+ lost$",
    "sync-before-serving": r"cannot be read, error 2",
    "directory-sync": r"^\d+ lost$|cannot be read|is missing",
    "memory-of-aborted": r"shown to readers",
    "memory-of-open": r"shown to readers",
    "sync-before-end": r"was answered with error (47|90)|was committed, and is not shown to readers",
}


def run(seed: int, *, protected: bool = True, without: str = "syncs", lives: int = 12) -> Outcome:
    rng = random.Random(f"{FAULT} {seed}")
    outcome = Outcome(FAULT, seed)
    objections = Objections()
    syncs_are_ignored = not protected and without == "syncs"
    with without_protection(None if protected else without):
        machine = Machine(seed, objections.object, syncs_are_ignored=syncs_are_ignored)
        durability = rng.choice(("synced", "synced", "synced", "os"))
        scene = Scene(seed, machine, objections, durability=durability, transactional_writers=2)
        for _ in range(lives):
            if not objections.problems:
                _live_and_die(scene, rng, outcome)
        # The last word has a life that nothing disturbs.
        if not objections.problems:
            machine.life(lambda: scene.live(steps=4, settle=True))
        beside = Machine(seed, objections.object, syncs_are_ignored=syncs_are_ignored)
        journal = JournalScene(seed, beside, objections)
        for _ in range(lives // 2):
            if not objections.problems:
                _write_and_die(journal, rng, outcome)
    objections.tell(outcome)
    outcome.figures = {
        "operations": machine.changes + beside.changes,
        "starts": scene.starts,
        "batches": sum(len(book.sent) for book in scene.books.values()),
        "acked": sum(book.acked for book in scene.books.values()),
        "committed": scene.transactions.ended("committed"),
        "aborted": scene.transactions.ended("aborted"),
        "journal_writes": journal.calls,
        "trace": machine.trace ^ beside.trace,
    }
    return outcome


def _live_and_die(scene: Scene, rng: random.Random, outcome: Outcome) -> None:
    end_at = rng.choice((rng.randint(1, 60), rng.randint(1, 300), rng.randint(1, 1000)))
    stops = rng.random() < 0.4
    scene.machine.life(lambda: scene.live(steps=rng.randint(3, 30), stop=stops), end_at=end_at)
    if rng.random() < 0.75:
        outcome.hits += scene.phase in ("starting", "stopping") or scene.in_flight > 0
        scene.power_lost()
        scene.machine.end("power loss")
    else:
        scene.machine.end("kill")


def _write_and_die(journal: JournalScene, rng: random.Random, outcome: Outcome) -> None:
    stops = rng.random() < 0.3
    journal.machine.life(
        lambda: journal.live(rng.randint(2, 15), stop=stops),
        end_at=rng.choice((rng.randint(1, 20), rng.randint(1, 200))),
    )
    lost = rng.random() < 0.75
    outcome.hits += lost and journal.in_flight > 0
    journal.machine.end("power loss" if lost else "kill")
