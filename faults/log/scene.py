"""A broker under a mixed load: producers of several kinds, a reader, commits, and topics that are created and deleted.
Segments roll every few batches, and retention removes them. A fault strikes, and the ledger checks the result.
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from faults.log.client_thread import ClientThread, finish_all
from faults.log.consumers import LiveReader, read_back
from faults.log.durable_state import CommitClient, DeletionClient, TopicClient
from faults.log.oracle import Ledger, PartitionId, Sent, partition_files, view_of_files
from faults.log.producers import IdempotentRawProducer, RawProducer, StockProducer
from faults.log.transactions import CommittedReader, TransactionalClient, TransactionLedger, read_committed
from faults.log.transactions import judge as judge_transactions
from faults.outcome import Outcome
from faults.protocol import calls
from faults.protocol.batches import build_batch
from faults.protocol.connection import Connection
from faults.servers.broker_process import BrokerProcess

__all__ = ["Scene"]

_KEPT, _STAMPED, _TRIMMED, _CUT = "kept", "stamped", "trimmed", "cut"
_TRANSACTIONAL = "paid"
_TRANSACTIONAL_PARTITIONS = 3
_PARTITIONS = {_KEPT: 2, _STAMPED: 1, _TRIMMED: 1, _CUT: 1}
_SHRINKING = (_TRIMMED, _CUT)


class Scene:
    """``refusals`` are the error codes that clients may get while the fault lasts."""

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
        self.workers: list[ClientThread] = []
        self.partition_ids: list[PartitionId] = [
            (topic, partition) for topic, count in _PARTITIONS.items() for partition in range(count)
        ]
        self._segment_bytes = segment_bytes or rng.choice([4_000, 20_000, 100_000])
        self._retained_bytes = rng.choice([10_000, 50_000])
        self._refusals = frozenset(refusals)
        self._pace = pace
        self._stock_settings = stock_settings or {}
        self._reconnect = {"reconnect.backoff.max.ms": reconnect_ms_max}
        self._direct_records = 0
        self.transactions = TransactionLedger() if transactions else None
        self._transactional_partitions = [
            (_TRANSACTIONAL, partition) for partition in range(_TRANSACTIONAL_PARTITIONS)
        ]
        self._request_timeout_s = request_timeout_s

    # Start

    def create_topics(self) -> None:
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
                    raise AssertionError(f"topic {topic} could not be created: error {error}")
            if self.transactions is not None:
                configs = common | {"retention.ms": "-1"}
                if error := calls.create_topic(
                    connection, _TRANSACTIONAL, _TRANSACTIONAL_PARTITIONS, configs
                ):
                    raise AssertionError(f"topic {_TRANSACTIONAL} could not be created: error {error}")

    def start_clients(self) -> None:
        """Start every kind of client."""
        port, ledger = self.broker.port, self.ledger

        def rng() -> random.Random:
            return random.Random(self.rng.random())

        raw: dict[str, Any] = {
            "pause_s": 0.006 * self._pace,
            "refusals": self._refusals,
            "timeout_s": self._request_timeout_s,
            "in_flight_max": self.rng.randint(1, 5),
        }
        stock: dict[str, Any] = {"pause_s": 0.03 * self._pace, "outstanding_max": 100}
        common: dict[str, Any] = {"refusals": self._refusals, "timeout_s": self._request_timeout_s}
        self.topics = TopicClient("topics", port, ledger, rng(), pause_s=0.01 * self._pace, **common)
        self.commits = CommitClient(
            "commits", port, ledger, self.partition_ids, rng(), pause_s=0.001 * self._pace, **common
        )
        self.cuts = DeletionClient("cuts", port, ledger, (_CUT, 0), rng(), timeout_s=self._request_timeout_s)
        self.plain = RawProducer("plain", port, ledger, self.partition_ids, rng(), **raw)
        self.idempotent = IdempotentRawProducer("idem", port, ledger, self.partition_ids, rng(), **raw)
        self.workers = [
            self.topics,
            self.commits,
            self.cuts,
            self.plain,
            self.idempotent,
            StockProducer(
                "stock",
                port,
                ledger,
                self.partition_ids,
                rng(),
                idempotent=False,
                settings=self._reconnect,
                **stock,
            ),
            StockProducer(
                "stock-idem",
                port,
                ledger,
                self.partition_ids,
                rng(),
                idempotent=True,
                compression=self.rng.choice(["none", "lz4", "zstd"]),
                settings=self._reconnect | self._stock_settings,
                **stock,
            ),
            LiveReader("reader", port, ledger, self.partition_ids, _SHRINKING, self._reconnect),
        ]
        if self.transactions is not None:
            transactions, partitions = self.transactions, self._transactional_partitions
            self.workers += [
                TransactionalClient(
                    name, port, ledger, transactions, partitions, rng(), settings=self._reconnect
                )
                for name in ("transactional-1", "transactional-2")
            ]
            self.workers.append(CommittedReader("reader-committed", port, ledger, transactions, partitions))
        # Switch threads often, so that a thread that gets a response does not wait for the computation of
        # other threads.
        sys.setswitchinterval(0.0005)
        for worker in self.workers:
            worker.start()

    # While the clients run

    @property
    def in_flight(self) -> int:
        return sum(worker.in_flight for worker in self.workers)

    def wait_for_acks(self, more: int = 1, timeout_s: float = 120.0) -> None:
        """Wait until the clients have progressed."""
        goal = self.ledger.acked + more
        deadline = time.monotonic() + timeout_s
        while self.ledger.acked < goal:
            self.broker.expect_alive()
            if time.monotonic() > deadline:
                self.ledger.report_problem(f"fewer than {more} acks within {timeout_s:.0f} s")
                return
            time.sleep(0.005)

    def wait_for_transactions(self, more: int, timeout_s: float = 5.0) -> None:
        """Wait for this many commits or the timeout. librdkafka takes long to find the coordinator after a kill."""
        if self.transactions is None:
            return
        goal = self.transactions.count("committed") + more
        deadline = time.monotonic() + timeout_s
        while self.transactions.count("committed") < goal and time.monotonic() < deadline:
            self.broker.expect_alive()
            time.sleep(0.01)

    def send_one(self, connection: Connection, partition_id: PartitionId) -> int:
        """Produce one more record directly, and return the error code."""
        self._direct_records += 1
        value = f"direct:{self._direct_records}:".encode()
        sent = [
            Sent(
                partition_id,
                value,
                "direct",
                self._direct_records,
                self._direct_records,
                once=True,
                ordered=False,
            )
        ]
        self.ledger.send(sent)
        answer = calls.produce(connection, *partition_id, build_batch([value], int(time.time() * 1000)))
        if not answer.error:
            self.ledger.ack(sent, answer.base_offset)
        return answer.error

    # End

    def finish(self, timeout_s: float = 120.0) -> None:
        """Stop new requests of the clients, and wait for the outstanding responses."""
        finish_all(self.workers, self.ledger, timeout_s)

    def give_up(self) -> None:
        """Stop the clients after a failure, without waiting for outstanding responses."""
        for worker in self.workers:
            worker.give_up()
        for worker in self.workers:
            worker.join(15.0)

    def judge(self) -> None:
        """Read everything from the running broker, then from its files after a clean stop, and check it."""
        with Connection(self.broker.port) as connection:
            self.topics.check(connection)
            self.commits.check(connection)
            ids = {topic.name: topic.id for topic in calls.topics(connection, list(_PARTITIONS))}
        if self.transactions is not None:
            judge_transactions(
                self.transactions,
                read_committed(self.broker.port, self._transactional_partitions),
                self.ledger,
            )
        views = read_back(self.broker.port, self.partition_ids)
        for partition_id, view in views.items():
            self.ledger.check(view, trimmed=partition_id[0] in _SHRINKING)
        code = self.broker.stop()
        if code:
            self.ledger.report_problem(f"a clean stop returned exit code {code}")
        for partition_id, view in views.items():
            directory = partition_files(self.broker.data, ids[partition_id[0]], partition_id[1])
            stored = view_of_files(directory, partition_id, self.ledger.report_problem)
            if stored.end != view.end and view.end > view.start:
                self.ledger.report_problem(
                    f"the files of {partition_id} end at {stored.end}, but clients read up to {view.end}"
                )
            for offset, value in stored.values.items():
                if view.values.get(offset, value) != value:
                    self.ledger.report_problem(
                        f"the files and the clients differ at {offset} of {partition_id}"
                    )
            if view.start > 0 and partition_id[0] == _TRIMMED:
                self._check_retention(directory, partition_id)
            if partition_id[0] == _CUT and view.start > self.cuts.requested:
                self.ledger.report_problem(
                    f"{partition_id} begins at {view.start}, but records were deleted only up to {self.cuts.requested}"
                )
        for trace in self.broker.unexpected_exceptions():
            self.ledger.report_problem(f"the broker logged an unexpected exception:\n{trace}")

    def _check_retention(self, directory: Path, partition_id: PartitionId) -> None:
        remaining_bytes = sum(path.stat().st_size for path in directory.glob("*.log"))
        if remaining_bytes < self._retained_bytes:
            self.ledger.report_problem(
                f"only {remaining_bytes} bytes of {partition_id} are left,"
                f" but retention.bytes is {self._retained_bytes}"
            )

    def report(self, outcome: Outcome) -> Outcome:
        outcome.lost += self.ledger.lost
        outcome.duplicated += self.ledger.duplicated
        outcome.problems += self.ledger.problems
        outcome.peak_rss_mb = max(outcome.peak_rss_mb, self.broker.peak_rss_mb)
        outcome.figures |= {
            "sent": self.ledger.sent,
            "acked": self.ledger.acked,
            "delivered": self.ledger.delivered,
            "commits": self.commits.commits,
            "topic_changes": self.topics.changes,
            "retried": self.idempotent.retried,
        }
        if self.transactions is not None:
            outcome.figures |= {fate: self.transactions.count(fate) for fate in ("committed", "aborted")}
        return outcome
