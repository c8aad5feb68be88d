"""X3, a sync fails once: strace makes one fdatasync or fsync of the broker return EIO.

The aim of a run is one of

    data        the active segment of a partition       the client gets error 56 and no ack there until a restart
    roll        the directory, when a segment is begun  the same
    topics      the journal of topics                   changes are refused until a restart; records go on
    commits     the journal of groups                   commits are refused until a restart; records go on
    mark        the file of the synced mark             nothing is refused: an older mark is also true
    start       any sync of a start                     the start fails with an error, or the partition is offline

Other partitions go on all the while. Then the broker is killed, started without the fault, and judged: nothing that
was acknowledged or given to a reader may be missing. With the real kernel a failed sync loses no bytes; that side is
shown by a file layer which forgets them.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from confluent_kafka import KafkaException

from bench.faults import calls
from bench.faults.batches import build_batch
from bench.faults.connection import Connection, Gone
from bench.faults.consuming import ReadingAlong, read_back
from bench.faults.keeping import CommittingWorker, TopicsWorker
from bench.faults.oracle import Ledger, Place, Sent, partition_files
from bench.faults.outcome import Outcome
from bench.faults.process import BrokerDied, BrokerProcess
from bench.faults.producing import IdempotentRawProducer, RawProducer
from bench.faults.tracing import failing, injected_at
from bench.faults.worker import Worker, finish_all
from bench.faults.workplace import workplace

__all__ = ["AIMS", "UNPROTECTED", "run"]

FAULT = "X3"
UNPROTECTED = {"sync-errors": r"acknowledged behind a failed sync"}
AIMS = ("data", "roll", "topics", "commits", "mark", "start")
_WEIGHTS = (10, 2, 2, 2, 1, 3)
_STORAGE_ERROR = 56
_NOT_COORDINATOR = 16
_HURT: Place = ("hurt", 0)
_WELL: Place = ("well", 0)
_STRUCK_S_MAX = 120.0
_AFTERWARDS_S = 0.15
_ROLL_BYTES = 20_000


@dataclass(slots=True)
class _Aim:
    """What is to fail: a call, and the files it must be for."""

    call: str
    paths: list[Path]
    when_max: int


class _Run:
    def __init__(self, broker: BrokerProcess, rng: random.Random, aim: str) -> None:
        self.broker = broker
        self.rng = rng
        self.aim = aim
        self.ledger = Ledger()
        self.trace = broker.home / "trace"
        self.workers: list[Worker] = []

    def prepare(self) -> _Aim:
        """A data directory with something in it, left by a clean stop, or by a kill where the start is the aim."""
        self.broker.start()
        settings: dict[str | bytes, str | bytes | None] = {"retention.ms": "-1"}
        if self.aim == "roll":
            settings["internal.segment.bytes"] = str(_ROLL_BYTES)
        with Connection(self.broker.port) as connection:
            for topic, _ in (_HURT, _WELL):
                if error := calls.create_topic(connection, topic, 1, settings):
                    raise AssertionError(f"topic {topic} could not be made: error {error}")
                self._fill(connection, (topic, 0))
            ids = {topic.name: topic.id for topic in calls.topics(connection)}
        if self.aim == "start":
            self.employ()
            _wait(lambda: self.ledger.acked > 20, self.broker, "no acks")
            self.broker.kill()
            return _Aim(self.rng.choice(["fdatasync", "fsync"]), [], 3)
        self.broker.stop()
        directory = partition_files(self.broker.data, ids[_HURT[0]], 0)
        return {
            "data": _Aim("fdatasync", sorted(directory.glob("*.log")), 6),
            "roll": _Aim("fsync", [directory], 2),
            "topics": _Aim("fdatasync", sorted((self.broker.data / "metadata").glob("*.log")), 3),
            "commits": _Aim("fdatasync", sorted((self.broker.data / "groups").glob("*.log")), 4),
            "mark": _Aim("fdatasync", [directory / "mark"], 1),
        }[self.aim]

    def _fill(self, connection: Connection, place: Place) -> None:
        """Something to lose, and so a partition whose next start makes no new files."""
        sent = [
            Sent(place, f"early:{n}:".encode(), "early", n, 0, once=True, ordered=True) for n in range(10)
        ]
        self.ledger.send(sent)
        answer = calls.produce(
            connection, *place, build_batch([one.value for one in sent], int(time.time() * 1000))
        )
        if answer.error:
            raise AssertionError(f"the first batch of {place} got error {answer.error}")
        self.ledger.ack(sent, answer.base_offset)

    def employ(self) -> None:
        port, ledger, rng = self.broker.port, self.ledger, self.rng
        refusals = frozenset({_STORAGE_ERROR})
        both = [_HURT, _WELL]

        def own() -> random.Random:
            return random.Random(rng.random())

        self.plain = RawProducer("plain", port, ledger, [_HURT], own(), refusals=refusals, pause_s=0.004)
        self.idem = IdempotentRawProducer(
            "idem", port, ledger, [_HURT], own(), refusals=refusals, pause_s=0.004
        )
        self.other = RawProducer("other", port, ledger, [_WELL], own(), refusals=refusals, pause_s=0.004)
        self.commits = CommittingWorker(
            "commits", port, ledger, both, own(), refusals=frozenset({_NOT_COORDINATOR})
        )
        self.topics = TopicsWorker("topics", port, ledger, own(), refusals=refusals)
        self.reader = ReadingAlong("reader", port, ledger, both)
        self.workers = [self.plain, self.idem, self.other, self.commits, self.topics, self.reader]
        for worker in self.workers:
            worker.start()

    def strike(self, aim: _Aim) -> int:
        """Run with the failing call; returns the number of hits."""
        when = self.rng.randint(1, aim.when_max)
        if self.aim == "start":
            # A start may have fewer syncs than that; it has one at the least.
            return self._strike_start(aim, when) or self._strike_start(aim, 1)
        self.broker.start(failing(self.trace, aim.call, when, aim.paths))
        self.employ()
        _wait(lambda: bool(injected_at(self.trace)), self.broker, "the fault did not strike")
        struck_at = injected_at(self.trace)[0]
        self._watch_consequences(struck_at)
        return 1

    def _strike_start(self, aim: _Aim, when: int) -> int:
        try:
            self.broker.start(failing(self.trace, aim.call, when))
            # Later syncs would fail as well, once in each thread; only those of the start are meant.
            self.broker.kill()
        except BrokerDied:
            said = self.broker.said().decode(errors="replace")
            if "Traceback" in said:
                self.ledger.object(f"a start with a failing sync ended in a trace:\n{said[-2000:]}")
        return len(injected_at(self.trace)[:1])

    def _watch_consequences(self, struck_at: float) -> None:
        """Others go on, and where the sync failed nobody is told that anything is safe."""
        goal = self._of(self.other, _WELL) + 5
        _wait(lambda: self._of(self.other, _WELL) >= goal, self.broker, "the other partition does not go on")
        time.sleep(_AFTERWARDS_S)
        if self.aim in ("data", "roll"):
            if not self._refusals():
                self.ledger.object("nobody was told of the failed sync")
            for producer in (self.plain, self.idem):
                late = [a for a in producer.answers if not a.error and a.sent_at > struck_at]
                if late:
                    after = (late[0].answered_at - struck_at) * 1000
                    self.ledger.object(
                        f"{len(late)} batches were acknowledged behind a failed sync, the first {after:.0f} ms after it"
                    )
        elif self.aim in ("topics", "commits"):
            keeper = self.topics if self.aim == "topics" else self.commits
            _wait(lambda: bool(keeper.refused), self.broker, f"no change of {self.aim} was refused")
            made = keeper.changes if isinstance(keeper, TopicsWorker) else keeper.commits
            time.sleep(_AFTERWARDS_S)
            if made != (keeper.changes if isinstance(keeper, TopicsWorker) else keeper.commits):
                self.ledger.object(f"{self.aim} were acknowledged behind a failed sync of their journal")
        self._expect_reading(_WELL)
        self._expect_reading(_HURT)
        if not self._said_aloud():
            self.ledger.object("the broker did not say that a sync failed")

    @staticmethod
    def _of(producer: RawProducer, place: Place) -> int:
        return sum(not answer.error and answer.place == place for answer in list(producer.answers))

    def _refusals(self) -> list[int]:
        return [
            a.error for p in (self.plain, self.idem) for a in list(p.answers) if a.error == _STORAGE_ERROR
        ]

    def _expect_reading(self, place: Place) -> None:
        with Connection(self.broker.port) as connection:
            fetched = calls.fetch(connection, *place, 0)
            if fetched.error or (fetched.high_watermark > 0 and not fetched.records):
                self.ledger.object(f"{place} cannot be read while the fault lasts: error {fetched.error}")

    def _said_aloud(self) -> bool:
        said = self.broker.said().decode(errors="replace")
        return any(
            "Input/output error" in line for line in said.splitlines() if "ERROR" in line or "WARN" in line
        )

    def judge(self) -> None:
        """Without the fault: everybody gets what they are owed, and all of it is there."""
        if self.rng.random() < 0.7 or not self.broker.runs:
            self.broker.kill()
        else:
            self.broker.stop()
        self.broker.start()
        if not self.workers:
            self.employ()
        before = self._of(self.plain, _HURT)
        _wait(
            lambda: self._of(self.plain, _HURT) > before, self.broker, "writes do not resume after a restart"
        )
        finish_all(self.workers, self.ledger)
        self.broker.kill()
        self.broker.start()
        with Connection(self.broker.port) as connection:
            self.topics.check(connection)
            self.commits.check(connection)
        for view in read_back(self.broker.port, [_HURT, _WELL]).values():
            self.ledger.check(view)
        self.broker.stop()
        for trace in self.broker.traces():
            self.ledger.object(f"the broker did not foresee:\n{trace}")


def run(
    seed: int, *, protected: bool = True, without: str = "sync-errors", aim: str | None = None
) -> Outcome:
    rng = random.Random(seed)
    outcome = Outcome(FAULT, seed)
    chosen = rng.choices(AIMS, _WEIGHTS)[0]
    if not protected:
        chosen = "data"
    starter = [] if protected else ["--without", without]
    with workplace(FAULT, seed) as home, BrokerProcess(home, starter=starter, forked=True) as broker:
        scene = _Run(broker, rng, aim or chosen)
        try:
            outcome.hits += scene.strike(scene.prepare())
            scene.judge()
        except (AssertionError, KafkaException, Gone) as failure:
            scene.ledger.object(f"{type(failure).__name__}: {failure}")
        finally:
            for worker in scene.workers:
                worker.give_up()
            for worker in scene.workers:
                worker.join(15.0)
        outcome.lost = scene.ledger.lost
        outcome.duplicated = scene.ledger.duplicated
        outcome.problems += scene.ledger.problems
        outcome.peak_rss_mb = broker.peak_rss_mb
        outcome.figures |= {"acked": scene.ledger.acked, "aim": AIMS.index(scene.aim)}
    return outcome


def _wait(condition: Callable[[], bool], broker: BrokerProcess, what: str) -> None:
    deadline = time.monotonic() + _STRUCK_S_MAX
    while not condition():
        broker.expect_alive()
        if time.monotonic() > deadline:
            raise AssertionError(f"{what} within {_STRUCK_S_MAX:.0f} s")
        time.sleep(0.01)
