"""A broker with all its parts busy: producers of several kinds, a reader, commits, topics that come and go, segments
that roll every few batches and retention that removes them. Faults strike it; the ledger judges.
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from bench.faults import calls
from bench.faults.batches import build_batch
from bench.faults.connection import Connection
from bench.faults.consuming import ReadingAlong, read_back
from bench.faults.keeping import CommittingWorker, CuttingWorker, TopicsWorker
from bench.faults.oracle import Ledger, Place, Sent, partition_files, view_of_files
from bench.faults.outcome import Outcome
from bench.faults.paying import Accounts, PayingWorker, ReadingCommitted, committed_back
from bench.faults.paying import judge as judge_transactions
from bench.faults.process import BrokerProcess
from bench.faults.producing import IdempotentRawProducer, RawProducer, StockProducer
from bench.faults.worker import Worker, finish_all

__all__ = ["Scene"]

_KEPT, _STAMPED, _TRIMMED, _CUT = "kept", "stamped", "trimmed", "cut"
_PAID = "paid"
_PAID_PARTITIONS = 3
_PARTITIONS = {_KEPT: 2, _STAMPED: 1, _TRIMMED: 1, _CUT: 1}
_SHRINKING = (_TRIMMED, _CUT)


class Scene:
    """``refusals`` are the error numbers that clients may be answered with while the fault lasts."""

    def __init__(
        self,
        broker: BrokerProcess,
        rng: random.Random,
        *,
        segment_bytes: int | None = None,
        refusals: Iterable[int] = (),
        pace: float = 1.0,
        request_timeout_s: float = 10.0,
        reconnect_ms_max: int = 20,
        stock_settings: dict[str, Any] | None = None,
        transactions: bool = False,
    ) -> None:
        self.broker = broker
        self.rng = rng
        self.ledger = Ledger()
        self.workers: list[Worker] = []
        self.places: list[Place] = [
            (topic, partition) for topic, count in _PARTITIONS.items() for partition in range(count)
        ]
        self._segment_bytes = segment_bytes or rng.choice([4_000, 20_000, 100_000])
        self._retained_bytes = rng.choice([10_000, 50_000])
        self._refusals = frozenset(refusals)
        self._pace = pace
        self._stock_settings = stock_settings or {}
        self._reconnect = {"reconnect.backoff.max.ms": reconnect_ms_max}
        self._by_hand = 0
        self.accounts = Accounts() if transactions else None
        self._paid = [(_PAID, partition) for partition in range(_PAID_PARTITIONS)]
        self._request_timeout_s = request_timeout_s

    # Before

    def make_topics(self) -> None:
        common: dict[str | bytes, str | bytes | None] = {"internal.segment.bytes": str(self._segment_bytes)}
        special: dict[str, dict[str | bytes, str | bytes | None]] = {
            _KEPT: {
                "retention.ms": "-1",
                "compression.type": self.rng.choice(["producer", "producer", "lz4"]),
            },
            _STAMPED: {"retention.ms": "-1", "message.timestamp.type": "LogAppendTime"},
            _TRIMMED: {"retention.bytes": str(self._retained_bytes)},
            _CUT: {"retention.ms": "-1"},
        }
        with Connection(self.broker.port) as connection:
            for topic, count in _PARTITIONS.items():
                error = calls.create_topic(connection, topic, count, common | special[topic])
                if error:
                    raise AssertionError(f"topic {topic} could not be made: error {error}")
            if self.accounts is not None:
                paid = common | {"retention.ms": "-1"}
                if error := calls.create_topic(connection, _PAID, _PAID_PARTITIONS, paid):
                    raise AssertionError(f"topic {_PAID} could not be made: error {error}")

    def employ(self) -> None:
        """Start every kind of client."""
        port, ledger = self.broker.port, self.ledger

        def rng() -> random.Random:
            return random.Random(self.rng.random())

        raw: dict[str, Any] = {
            "pause_s": 0.006 * self._pace,
            "refusals": self._refusals,
            "timeout_s": self._request_timeout_s,
            "ahead_max": self.rng.randint(1, 5),
        }
        stock: dict[str, Any] = {"pause_s": 0.03 * self._pace, "outstanding_max": 100}
        keep: dict[str, Any] = {"refusals": self._refusals, "timeout_s": self._request_timeout_s}
        self.topics = TopicsWorker("topics", port, ledger, rng(), pause_s=0.01 * self._pace, **keep)
        self.commits = CommittingWorker(
            "commits", port, ledger, self.places, rng(), pause_s=0.001 * self._pace, **keep
        )
        self.cuts = CuttingWorker("cuts", port, ledger, (_CUT, 0), rng(), timeout_s=self._request_timeout_s)
        self.plain = RawProducer("plain", port, ledger, self.places, rng(), **raw)
        self.idempotent = IdempotentRawProducer("idem", port, ledger, self.places, rng(), **raw)
        self.workers = [
            self.topics,
            self.commits,
            self.cuts,
            self.plain,
            self.idempotent,
            StockProducer(
                "stock", port, ledger, self.places, rng(), idempotent=False, settings=self._reconnect, **stock
            ),
            StockProducer(
                "stock-idem",
                port,
                ledger,
                self.places,
                rng(),
                idempotent=True,
                compression=self.rng.choice(["none", "lz4", "zstd"]),
                settings=self._reconnect | self._stock_settings,
                **stock,
            ),
            ReadingAlong("reader", port, ledger, self.places, _SHRINKING, self._reconnect),
        ]
        if self.accounts is not None:
            ours: tuple[Any, ...] = (port, ledger, self.accounts, self._paid)
            self.workers += [
                PayingWorker("paying-1", *ours, rng(), settings=self._reconnect),
                PayingWorker("paying-2", *ours, rng(), settings=self._reconnect),
                ReadingCommitted("reader-committed", *ours),
            ]
        # Threads that wait for an answer must not wait for the others' arithmetic as well.
        sys.setswitchinterval(0.0005)
        for worker in self.workers:
            worker.start()

    # Meanwhile

    @property
    def in_flight(self) -> int:
        return sum(worker.in_flight for worker in self.workers)

    def wait_for_acks(self, more: int = 1, timeout_s: float = 120.0) -> None:
        """Until the clients have got somewhere since now."""
        goal = self.ledger.acked + more
        deadline = time.monotonic() + timeout_s
        while self.ledger.acked < goal:
            self.broker.expect_alive()
            if time.monotonic() > deadline:
                self.ledger.object(f"no {more} acks within {timeout_s:.0f} s")
                return
            time.sleep(0.005)

    def wait_for_transactions(self, more: int, timeout_s: float = 5.0) -> None:
        """Until so many have been committed since now, or there is no more patience: librdkafka takes its time to
        look for a coordinator that went away.
        """
        if self.accounts is None:
            return
        goal = self.accounts.count("committed") + more
        deadline = time.monotonic() + timeout_s
        while self.accounts.count("committed") < goal and time.monotonic() < deadline:
            self.broker.expect_alive()
            time.sleep(0.01)

    def send_one(self, connection: Connection, place: Place) -> int:
        """One record more, by hand; returns the error of the answer."""
        self._by_hand += 1
        value = f"hand:{self._by_hand}:".encode()
        sent = [Sent(place, value, "hand", self._by_hand, self._by_hand, once=True, ordered=False)]
        self.ledger.send(sent)
        answer = calls.produce(connection, *place, build_batch([value], int(time.time() * 1000)))
        if not answer.error:
            self.ledger.ack(sent, answer.base_offset)
        return answer.error

    # Afterwards

    def finish(self, timeout_s: float = 120.0) -> None:
        """The clients send nothing new and wait for what they are owed."""
        finish_all(self.workers, self.ledger, timeout_s)

    def give_up(self) -> None:
        """End the clients whatever they wait for: after a failure."""
        for worker in self.workers:
            worker.give_up()
        for worker in self.workers:
            worker.join(15.0)

    def judge(self) -> None:
        """Read back everything from the running broker, then from the files that it leaves after a clean stop."""
        with Connection(self.broker.port) as connection:
            self.topics.check(connection)
            self.commits.check(connection)
            ids = {topic.name: topic.id for topic in calls.topics(connection, list(_PARTITIONS))}
        if self.accounts is not None:
            judge_transactions(self.accounts, committed_back(self.broker.port, self._paid), self.ledger)
        views = read_back(self.broker.port, self.places)
        for place, view in views.items():
            self.ledger.check(view, trimmed=place[0] in _SHRINKING)
        code = self.broker.stop()
        if code:
            self.ledger.object(f"a clean stop ended with {code}")
        for place, view in views.items():
            directory = partition_files(self.broker.data, ids[place[0]], place[1])
            stored = view_of_files(directory, place, self.ledger.object)
            if stored.end != view.end and view.end > view.start:
                self.ledger.object(f"the files of {place} end at {stored.end}, clients were told {view.end}")
            for offset, value in stored.values.items():
                if view.values.get(offset, value) != value:
                    self.ledger.object(f"the files and the clients differ at {offset} of {place}")
            if view.start > 0 and place[0] == _TRIMMED:
                self._check_retention(directory, place)
            if place[0] == _CUT and view.start > self.cuts.asked:
                self.ledger.object(f"{place} begins at {view.start}, and {self.cuts.asked} was asked for")
        for trace in self.broker.traces():
            self.ledger.object(f"the broker did not foresee:\n{trace}")

    def _check_retention(self, directory: Path, place: Place) -> None:
        left = sum(path.stat().st_size for path in directory.glob("*.log"))
        if left < self._retained_bytes:
            self.ledger.object(
                f"{left} bytes of {place} are left, and retention.bytes promises {self._retained_bytes}"
            )

    def report(self, outcome: Outcome) -> Outcome:
        outcome.lost += self.ledger.lost
        outcome.duplicated += self.ledger.duplicated
        outcome.problems += self.ledger.problems
        outcome.peak_rss_mb = max(outcome.peak_rss_mb, self.broker.peak_rss_mb)
        outcome.figures |= {
            "sent": self.ledger.sent,
            "acked": self.ledger.acked,
            "given": self.ledger.given,
            "commits": self.commits.commits,
            "topic_changes": self.topics.changes,
            "sent_again": self.idempotent.sent_again,
        }
        if self.accounts is not None:
            outcome.figures |= {fate: self.accounts.count(fate) for fate in ("committed", "aborted")}
        return outcome
