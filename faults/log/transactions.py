"""The transactions of a run: a stock transactional producer, a stock reader of committed records, and the checks.

    all or nothing      a transaction is readable in all partitions that it wrote to, or in none
        committed           readable as soon as the commit is acknowledged; a record that a reader received stays
        readable aborted             never readable, and neither is a transaction whose commit was never requested once,
        in order      each record is readable once, in the order of its partition

A transaction whose commit request got no response may be readable or not.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from faults.log.client_thread import ClientThread
from faults.log.consumers import partition_offset_value, stock_consumer
from faults.log.oracle import Ledger, PartitionId

__all__ = [
    "CommittedReader",
    "Fate",
    "TransactionLedger",
    "TransactionRecord",
    "TransactionalClient",
    "judge",
    "read_committed",
]

Fate = Literal["open", "requested", "committed", "aborted"]
_CALL_S = 5.0
_EOF_WAIT_S = 30.0


@dataclass(slots=True)
class TransactionRecord:
    """One transaction: the values that it wrote to each partition, in order, and its outcome."""

    number: int
    values: dict[PartitionId, list[bytes]] = field(default_factory=dict)
    fate: Fate = "open"


class TransactionLedger:
    """All transactions of a run. The clients record them from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.all: list[TransactionRecord] = []
        self.delivered: set[tuple[PartitionId, bytes]] = set()

    def begin(self) -> TransactionRecord:
        with self._lock:
            self.all.append(TransactionRecord(len(self.all)))
            return self.all[-1]

    def record_delivery(self, partition_id: PartitionId, value: bytes) -> None:
        with self._lock:
            self.delivered.add((partition_id, value))

    def count(self, fate: Fate) -> int:
        with self._lock:
            return sum(transaction.fate == fate for transaction in self.all)


class TransactionalClient(ClientThread):
    """A librdkafka producer with a transactional id. Sometimes it is dropped in the middle of a transaction, and a
    successor takes over the id.
    """

    def __init__(
        self,
        name: str,
        port: int,
        ledger: Ledger,
        transactions: TransactionLedger,
        partition_ids: Sequence[PartitionId],
        rng: random.Random,
        *,
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(name, port, ledger)
        self._transactions = transactions
        self._partition_ids = list(partition_ids)
        self._rng = rng
        self._current: TransactionRecord | None = None
        self._settings = {
            "bootstrap.servers": f"127.0.0.1:{port}",
            "client.id": name,
            "transactional.id": name,
            "transaction.timeout.ms": 60_000,
            "linger.ms": rng.choice([0, 1, 5]),
            "reconnect.backoff.ms": 5,
            "reconnect.backoff.max.ms": 20,
            "retry.backoff.ms": 5,
            "retry.backoff.max.ms": 20,
            "topic.metadata.refresh.fast.interval.ms": 10,
            "log_level": 0,
            **(settings or {}),
        }

    @property
    def in_flight(self) -> int:
        return int(self._current is not None)

    def work(self) -> None:
        while not self.finishing:
            producer = Producer(self._settings)
            try:
                self._call(lambda: producer.init_transactions(_CALL_S))  # noqa: B023
                while not self.finishing and self._rng.random() > 0.05:
                    self._transact(producer)
            except KafkaException as error:
                if self.gave_up:
                    return
                if not error.args[0].fatal() and not error.args[0].txn_requires_abort():
                    self.ledger.report_problem(f"{self.name}: {error}")
            finally:
                self._current = None
        # The last producer aborts a transaction that was left open.
        last = Producer(self._settings)
        self._call(lambda: last.init_transactions(_CALL_S))

    def _transact(self, producer: Producer) -> None:
        transaction = self._current = self._transactions.begin()
        producer.begin_transaction()
        for index in range(self._rng.randint(1, 12)):
            partition_id = self._rng.choice(self._partition_ids)
            padding = self._rng.randbytes(self._rng.randint(0, 300))
            value = f"{self.name}:{transaction.number}.{index}:".encode() + padding
            transaction.values.setdefault(partition_id, []).append(value)
            try:
                producer.produce(partition_id[0], value, partition=partition_id[1])
            except KafkaException as error:
                if error.args[0].code() != KafkaError._STATE:
                    raise
                # The transaction has failed meanwhile; its commit reports the reason.
                self._commit(producer, transaction)
                break
            if self._rng.random() < 0.2:
                producer.poll(0.002)
        else:
            if self._rng.random() < 0.05:
                # Stop as if the process had died here.
                raise KafkaException(KafkaError(KafkaError._FAIL, "dropped on purpose", fatal=True))
            self._end(producer, transaction)
        self._current = None
        time.sleep(self._rng.random() * 0.01)

    def _end(self, producer: Producer, transaction: TransactionRecord) -> None:
        if self._rng.random() < 0.3:
            self._call(lambda: producer.abort_transaction(_CALL_S))
            transaction.fate = "aborted"
        else:
            self._commit(producer, transaction)

    def _commit(self, producer: Producer, transaction: TransactionRecord) -> None:
        transaction.fate = "requested"
        try:
            self._call(lambda: producer.commit_transaction(_CALL_S))
        except KafkaException as error:
            if not error.args[0].txn_requires_abort():
                raise
            # The transaction was not committed: after a commit, the producer would have got a response.
            self._call(lambda: producer.abort_transaction(_CALL_S))
            transaction.fate = "aborted"
        else:
            transaction.fate = "committed"

    def _call(self, call: Callable[[], None]) -> None:
        """Retry until the call succeeds, however often the broker becomes unreachable."""
        while True:
            try:
                call()
            except KafkaException as error:
                if self.gave_up or not error.args[0].retriable():
                    raise
            else:
                return


class CommittedReader(ClientThread):
    """A stock consumer of committed records that reads while the fault happens."""

    def __init__(
        self,
        name: str,
        port: int,
        ledger: Ledger,
        transactions: TransactionLedger,
        partition_ids: Sequence[PartitionId],
    ) -> None:
        super().__init__(name, port, ledger)
        self._transactions = transactions
        self._partition_ids = list(partition_ids)

    def work(self) -> None:
        consumer = stock_consumer(self.port, f"committed-{self.name}", {"isolation.level": "read_committed"})
        try:
            consumer.assign([TopicPartition(*partition_id, 0) for partition_id in self._partition_ids])
            while not self.finishing:
                for message in consumer.consume(500, 0.02):
                    if message.error() is None:
                        partition_id, _, value = partition_offset_value(message)
                        self._transactions.record_delivery(partition_id, value)
        finally:
            consumer.close()


def read_committed(port: int, partition_ids: Sequence[PartitionId]) -> dict[PartitionId, list[bytes]]:
    """Read all committed records with a stock client, up to the end."""
    consumer: Consumer = stock_consumer(
        port, "committed-back", {"isolation.level": "read_committed", "enable.partition.eof": True}
    )
    values_read: dict[PartitionId, list[bytes]] = {partition_id: [] for partition_id in partition_ids}
    unfinished = set(partition_ids)
    deadline = time.monotonic() + _EOF_WAIT_S
    try:
        consumer.assign([TopicPartition(*partition_id, 0) for partition_id in partition_ids])
        while unfinished and time.monotonic() < deadline:
            for message in consumer.consume(1000, 0.05):
                error = message.error()
                if error is None:
                    partition_id, _, value = partition_offset_value(message)
                    values_read[partition_id].append(value)
                elif error.code() == KafkaError._PARTITION_EOF:
                    unfinished.discard((message.topic() or "", message.partition() or 0))
    finally:
        consumer.close()
    if unfinished:
        raise AssertionError(
            f"the end of the committed records of {unfinished} was not reached within {_EOF_WAIT_S:.0f} s"
        )
    return values_read


def judge(
    transactions: TransactionLedger, values_read: Mapping[PartitionId, list[bytes]], ledger: Ledger
) -> None:
    """Compare the records of a read-committed reader with what the clients recorded."""
    readable = {
        partition_id: {value: index for index, value in enumerate(values)}
        for partition_id, values in values_read.items()
    }
    written = {
        (partition_id, value)
        for transaction in transactions.all
        for partition_id, values in transaction.values.items()
        for value in values
    }
    for partition_id, values in values_read.items():
        duplicates = len(values) - len(readable[partition_id])
        if duplicates:
            ledger.duplicated += duplicates
            ledger.report_problem(f"{duplicates} committed records of {partition_id} are duplicates")
        for value in values:
            if (partition_id, value) not in written:
                ledger.report_problem(f"{partition_id} has {value[:30]!r}, which no transaction wrote there")
    for transaction in transactions.all:
        _judge_transaction(transaction, readable, ledger)
    for partition_id, value in transactions.delivered:
        if value not in readable.get(partition_id, {}):
            ledger.lost += 1
            ledger.report_problem(
                f"{value[:30]!r} of {partition_id} was delivered as committed, but is not readable any more"
            )


def _judge_transaction(
    transaction: TransactionRecord, readable: Mapping[PartitionId, Mapping[bytes, int]], ledger: Ledger
) -> None:
    record_count = sum(map(len, transaction.values.values()))
    readable_count = 0
    for partition_id, values in transaction.values.items():
        indexes = [
            readable[partition_id][value] for value in values if value in readable.get(partition_id, {})
        ]
        readable_count += len(indexes)
        if indexes != sorted(indexes):
            ledger.report_problem(
                f"the records of transaction {transaction.number} in {partition_id} are out of order"
            )
    if readable_count and transaction.fate in ("open", "aborted"):
        ledger.report_problem(
            f"{readable_count} records of the {transaction.fate} transaction {transaction.number} are readable"
        )
    elif readable_count < record_count and transaction.fate == "committed":
        ledger.lost += record_count - readable_count
        ledger.report_problem(
            f"{readable_count} of {record_count} records of the committed transaction {transaction.number} are readable"
        )
    elif readable_count not in (0, record_count):
        ledger.report_problem(
            f"{readable_count} of {record_count} records of transaction {transaction.number} are readable"
        )
