"""X3, a sync fails once, on a simulated disk that forgets: what it should have kept still reads back, but a later sync
does not bring it to the disk, and a power loss shows that it was never there.

The aim of a run is one of

    data      a segment of one partition    error 56, and nothing sent there later is acknowledged before a restart
    roll      that partition's directory    the same
    topics    the journal of topics         changes of topics are refused until a restart
    commits   the journal of groups         commits are refused until a restart
    mark      that partition's mark         nothing is refused but the deletion of records: an older mark is true, too
    side      an index or a state           nothing is refused: they can be made again

Everything else goes on. Each ack is held against what the simulation knows to be on the disk. Then the process is
killed, so that the next one finds the forgotten bytes in its page cache; what that one serves must outlast a power
loss. Or the power goes at once.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

from bench.faults.outcome import Outcome
from bench.faults.sim_book import Objections
from bench.faults.sim_door import DATA, Door
from bench.faults.sim_facts import TopicFact
from bench.faults.sim_machine import Machine
from bench.faults.sim_scene import Scene
from bench.faults.sim_unprotected import without_protection
from headrace.testing.faulty_files import Fault, FaultyFiles

__all__ = ["AIMS", "UNPROTECTED", "run"]

FAULT = "X3"
UNPROTECTED = {
    "fence": r"sent after the failure and acknowledged|the disk has not got it",
    "second-write": r"cannot be read, error 2",
}
AIMS = ("data", "roll", "topics", "commits", "mark", "side")
_WEIGHTS = (8, 3, 3, 3, 2, 1)
_STORAGE, _NOT_COORDINATOR = 56, 16
_TRIES = 6


class _Aim:
    """Which file fails, and which answers are right while it has."""

    def __init__(self, kind: str, rng: random.Random) -> None:
        self.kind = kind
        self.topic = ""
        self.partition = -1
        self.fault: Fault | None = None
        self._rng = rng

    @property
    def struck(self) -> bool:
        return self.fault is not None and self.fault.hits > 0

    def allows(self, kind: str, topic: str, partition: int, error: int) -> bool:
        if not self.struck:
            return False
        here = (topic, partition) == (self.topic, self.partition)
        if self.kind in ("data", "roll"):
            return here and kind in ("produce", "change") and error == _STORAGE
        if self.kind == "topics":
            return kind == "change" and error == _STORAGE
        if self.kind == "commits":
            # A topic's deletion takes its committed offsets with it, so it needs this journal as well.
            return (kind, error) in (("commit", _NOT_COORDINATOR), ("change", _STORAGE))
        return self.kind == "mark" and here and kind == "change" and error == _STORAGE

    def arm(self, scene: Scene) -> None:
        """Set up the fault on what is there now."""
        there = [(name, fact.sure) for name, fact in scene.topics.items() if fact.sure is not None]
        if not there:
            return
        self.topic, fact = self._rng.choice(there)
        assert fact is not None
        self.partition = self._rng.randrange(fact.partitions)
        home = DATA / "topics" / fact.id.hex() / str(self.partition)
        files = scene.machine.files
        nth = self._rng.randint(1, 4)
        if self.kind == "roll":
            self.fault = files.fail("sync_dir", path=str(home))
        else:
            pattern = {
                "data": f"{home}/*.log",
                "topics": f"{DATA}/metadata/*.log",
                "commits": f"{DATA}/groups/*.log",
                "mark": f"{home}/mark",
                "side": f"{home}/*.new",
            }[self.kind]
            self.fault = files.forget_sync(path=pattern, nth=1 if self.kind == "mark" else nth)
        self._watch_acks(scene, fact, home)

    def _watch_acks(self, scene: Scene, fact: TopicFact, home: Path) -> None:
        book = scene.book_of(self.topic, fact, self.partition)
        book.is_durable = _durable_in(scene.machine.files, home)
        if self.kind in ("data", "roll"):
            book.has_failed = lambda: self.struck

    def disarm(self, scene: Scene) -> None:
        for book in scene.books.values():
            book.is_durable = lambda body: True
            book.has_failed = lambda: False


def _durable_in(files: FaultyFiles, home: Path) -> Callable[[bytes], bool]:
    def look(body: bytes) -> bool:
        names = [name for name in files.list(home) if name.endswith(".log")]
        return any(body in (files.durable_content(home / name) or b"") for name in names)

    return look


def run(seed: int, *, protected: bool = True, without: str = "fence", aim: str | None = None) -> Outcome:
    rng = random.Random(f"{FAULT} {seed}")
    outcome = Outcome(FAULT, seed)
    objections = Objections()
    aimed = _Aim(aim or rng.choices(AIMS, _WEIGHTS)[0], rng)
    if not protected:
        aimed.kind = "data"
    machine = Machine(seed, objections.object)
    scene = Scene(seed, machine, objections, allows=aimed.allows)
    with without_protection(None if protected else without):
        machine.life(lambda: scene.live(steps=12))
        for _ in range(_TRIES):
            if not aimed.struck and not objections.problems:
                _fail_once(scene, aimed, rng)
        outcome.hits += aimed.struck
        if protected and aimed.struck and aimed.kind != "side":
            _check_said(machine, objections)
        aimed.disarm(scene)
        if rng.random() < 0.7 or not protected:
            machine.end("kill")
            machine.life(lambda: scene.live(steps=rng.randint(0, 4), stop=rng.random() < 0.5))
        if not objections.problems:
            machine.end("power loss")
            machine.life(lambda: scene.live(steps=4))
    objections.tell(outcome)
    outcome.figures = {
        "refused": scene.refused,
        "batches": sum(len(book.sent) for book in scene.books.values()),
        "acked": sum(book.acked for book in scene.books.values()),
        "trace": machine.trace,
    }
    return outcome


def _fail_once(scene: Scene, aimed: _Aim, rng: random.Random) -> None:
    def arm(door: Door) -> None:
        aimed.arm(scene)

    stops = rng.random() < 0.3
    scene.machine.life(lambda: scene.live(steps=25, stop=stops, before_work=arm))
    if not aimed.struck:
        aimed.disarm(scene)
        scene.machine.end("kill")


def _check_said(machine: Machine, objections: Objections) -> None:
    if not any("Input/output error" in line for line in machine.said):
        objections.object(f"nobody was told of the failed sync, only {machine.said}")
