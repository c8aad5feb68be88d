"""Transactions of a run: a stock transactional producer, a stock reader of committed records, and what must hold.

    all or nothing      of every transaction, over all partitions that it wrote to
    committed           shown, once the commit was answered; and what a reader was given once, for good
    aborted             never shown, nor is one whose commit nobody asked for
    once, in order      each record, within its partition

A transaction whose commit was asked for and not answered may be there or not.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from bench.faults.consuming import content_of, stock_consumer
from bench.faults.oracle import Ledger, Place
from bench.faults.worker import Worker

__all__ = ["Accounts", "Fate", "Paid", "PayingWorker", "ReadingCommitted", "committed_back", "judge"]

Fate = Literal["open", "asked", "committed", "aborted"]
_CALL_S = 5.0
_EOF_WAIT_S = 30.0


@dataclass(slots=True)
class Paid:
    """One transaction: what it wrote where, in order, and how far it came."""

    number: int
    values: dict[Place, list[bytes]] = field(default_factory=dict)
    fate: Fate = "open"


class Accounts:
    """All transactions of a run, kept by its clients from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.all: list[Paid] = []
        self.given: set[tuple[Place, bytes]] = set()

    def begin(self) -> Paid:
        with self._lock:
            self.all.append(Paid(len(self.all)))
            return self.all[-1]

    def give(self, place: Place, value: bytes) -> None:
        with self._lock:
            self.given.add((place, value))

    def count(self, fate: Fate) -> int:
        with self._lock:
            return sum(one.fate == fate for one in self.all)


class PayingWorker(Worker):
    """librdkafka with a transactional id. Now and then it is dropped in the middle of a transaction, and its successor
    takes the id over.
    """

    def __init__(
        self,
        name: str,
        port: int,
        ledger: Ledger,
        accounts: Accounts,
        places: Sequence[Place],
        rng: random.Random,
        *,
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(name, port, ledger)
        self._accounts = accounts
        self._places = list(places)
        self._rng = rng
        self._current: Paid | None = None
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
                    self.ledger.object(f"{self.name}: {error}")
            finally:
                self._current = None
        # Whatever was left open is aborted by the last one.
        last = Producer(self._settings)
        self._call(lambda: last.init_transactions(_CALL_S))

    def _transact(self, producer: Producer) -> None:
        transaction = self._current = self._accounts.begin()
        producer.begin_transaction()
        for index in range(self._rng.randint(1, 12)):
            place = self._rng.choice(self._places)
            padding = self._rng.randbytes(self._rng.randint(0, 300))
            value = f"{self.name}:{transaction.number}.{index}:".encode() + padding
            transaction.values.setdefault(place, []).append(value)
            try:
                producer.produce(place[0], value, partition=place[1])
            except KafkaException as error:
                if error.args[0].code() != KafkaError._STATE:
                    raise
                # The transaction has failed since it was begun; why, its commit says.
                self._commit(producer, transaction)
                break
            if self._rng.random() < 0.2:
                producer.poll(0.002)
        else:
            if self._rng.random() < 0.05:
                # As if the process had died here.
                raise KafkaException(KafkaError(KafkaError._FAIL, "dropped on purpose", fatal=True))
            self._end(producer, transaction)
        self._current = None
        time.sleep(self._rng.random() * 0.01)

    def _end(self, producer: Producer, transaction: Paid) -> None:
        if self._rng.random() < 0.3:
            self._call(lambda: producer.abort_transaction(_CALL_S))
            transaction.fate = "aborted"
        else:
            self._commit(producer, transaction)

    def _commit(self, producer: Producer, transaction: Paid) -> None:
        transaction.fate = "asked"
        try:
            self._call(lambda: producer.commit_transaction(_CALL_S))
        except KafkaException as error:
            if not error.args[0].txn_requires_abort():
                raise
            # It was not committed, or the producer would have been told so.
            self._call(lambda: producer.abort_transaction(_CALL_S))
            transaction.fate = "aborted"
        else:
            transaction.fate = "committed"

    def _call(self, act: Callable[[], None]) -> None:
        """Until it is done, however often the broker goes away meanwhile."""
        while True:
            try:
                act()
            except KafkaException as error:
                if self.gave_up or not error.args[0].retriable():
                    raise
            else:
                return


class ReadingCommitted(Worker):
    """A stock consumer that is given committed records only, while the fault strikes."""

    def __init__(
        self, name: str, port: int, ledger: Ledger, accounts: Accounts, places: Sequence[Place]
    ) -> None:
        super().__init__(name, port, ledger)
        self._accounts = accounts
        self._places = list(places)

    def work(self) -> None:
        consumer = stock_consumer(self.port, f"committed-{self.name}", {"isolation.level": "read_committed"})
        try:
            consumer.assign([TopicPartition(*place, 0) for place in self._places])
            while not self.finishing:
                for message in consumer.consume(500, 0.02):
                    if message.error() is None:
                        place, _, value = content_of(message)
                        self._accounts.give(place, value)
        finally:
            consumer.close()


def committed_back(port: int, places: Sequence[Place]) -> dict[Place, list[bytes]]:
    """All committed records, by a stock client, up to where it is told that there are no more."""
    consumer: Consumer = stock_consumer(
        port, "committed-back", {"isolation.level": "read_committed", "enable.partition.eof": True}
    )
    found: dict[Place, list[bytes]] = {place: [] for place in places}
    left = set(places)
    deadline = time.monotonic() + _EOF_WAIT_S
    try:
        consumer.assign([TopicPartition(*place, 0) for place in places])
        while left and time.monotonic() < deadline:
            for message in consumer.consume(1000, 0.05):
                error = message.error()
                if error is None:
                    place, _, value = content_of(message)
                    found[place].append(value)
                elif error.code() == KafkaError._PARTITION_EOF:
                    left.discard((message.topic() or "", message.partition() or 0))
    finally:
        consumer.close()
    if left:
        raise AssertionError(f"no end of the committed records of {left} in {_EOF_WAIT_S:.0f} s")
    return found


def judge(accounts: Accounts, found: Mapping[Place, list[bytes]], ledger: Ledger) -> None:
    """Hold what a reader of committed records finds against what was done."""
    shown = {place: {value: index for index, value in enumerate(values)} for place, values in found.items()}
    known = {
        (place, value) for one in accounts.all for place, values in one.values.items() for value in values
    }
    for place, values in found.items():
        twins = len(values) - len(shown[place])
        if twins:
            ledger.duplicated += twins
            ledger.object(f"{twins} committed records of {place} are there twice")
        for value in values:
            if (place, value) not in known:
                ledger.object(f"{place} shows {value[:30]!r}, which no transaction wrote there")
    for one in accounts.all:
        _judge_one(one, shown, ledger)
    for place, value in accounts.given:
        if value not in shown.get(place, {}):
            ledger.lost += 1
            ledger.object(f"{value[:30]!r} of {place} was given as committed, and is not shown any more")


def _judge_one(one: Paid, shown: Mapping[Place, Mapping[bytes, int]], ledger: Ledger) -> None:
    wanted = sum(map(len, one.values.values()))
    there = 0
    for place, values in one.values.items():
        places = [shown[place][value] for value in values if value in shown.get(place, {})]
        there += len(places)
        if places != sorted(places):
            ledger.object(f"the records of transaction {one.number} in {place} are out of order")
    if there and one.fate in ("open", "aborted"):
        ledger.object(f"{there} records of transaction {one.number} are shown, which is {one.fate}")
    elif there < wanted and one.fate == "committed":
        ledger.lost += wanted - there
        ledger.object(f"{there} of {wanted} records of the committed transaction {one.number} are shown")
    elif there not in (0, wanted):
        ledger.object(f"{there} of {wanted} records of transaction {one.number} are shown")
