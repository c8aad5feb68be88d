"""Clients that write while a broker backs up and is killed. They record the time of each acknowledgement.

    numbers    two partitions, each 0, 1, 2 … from an idempotent producer
    pairs      two partitions, with the same number in both, written by one transaction
    readers    a group that commits the number of acknowledged records in the first partition of ``numbers``

A time is the wall-clock time, in milliseconds, at which the response arrived.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from typing import Any

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

__all__ = ["GROUP", "Acknowledged", "Writers"]

GROUP = "readers"
_TRANSACTION_CALL_S = 5.0


def _now_ms() -> int:
    return int(time.time() * 1000) + 1


@dataclass(slots=True)
class Acknowledged:
    """Acknowledged numbers with their times."""

    numbers: dict[int, list[tuple[int, int]]] = field(default_factory=lambda: {0: [], 1: []})
    pairs: list[tuple[int, int]] = field(default_factory=list)
    commits: list[tuple[int, int]] = field(default_factory=list)

    def count(self) -> int:
        return len(self.numbers[0]) + len(self.pairs) + len(self.commits)


class Writers:
    def __init__(self, bootstrap: str) -> None:
        self.acknowledged = Acknowledged()
        self.problems: list[str] = []
        self._bootstrap = bootstrap
        self._stop = threading.Event()
        self._threads = [
            threading.Thread(target=self._run_and_record_problem, args=(work,), daemon=True)
            for work in (self._write_numbers, self._write_pairs, self._commit_offsets)
        ]
        for thread in self._threads:
            thread.start()

    def finish(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(60)
            if thread.is_alive():
                self.problems.append(f"{thread.name} did not stop")

    def _run_and_record_problem(self, work: Any) -> None:
        try:
            work()
        # A writer that stops early tests nothing, so report its exception as a problem.
        except Exception as error:
            self.problems.append(f"{work.__name__}: {type(error).__name__}: {error}")

    def _client(self, **settings: Any) -> dict[str, Any]:
        return {
            "bootstrap.servers": self._bootstrap,
            "log_level": 0,
            "reconnect.backoff.ms": 5,
            "reconnect.backoff.max.ms": 50,
            "retry.backoff.ms": 5,
            **settings,
        }

    def _write_numbers(self) -> None:
        producer = Producer(self._client(**{"enable.idempotence": True, "linger.ms": 1}))

        def on_delivery(error: Any, message: Any) -> None:
            if error is None:
                self.acknowledged.numbers[message.partition()].append((int(message.value()), _now_ms()))
            else:
                self.problems.append(f"number {message.value()!r} was not accepted: {error}")

        number = 0
        while not self._stop.is_set():
            for partition in (0, 1):
                producer.produce("numbers", b"%d" % number, partition=partition, on_delivery=on_delivery)
            number += 1
            producer.poll(0.001)
        if producer.flush(30):
            self.problems.append("some numbers were never acknowledged")

    def _write_pairs(self) -> None:
        number, producer = 0, None
        while not self._stop.is_set():
            number += 1
            try:
                if producer is None:
                    producer = Producer(
                        self._client(**{"transactional.id": "pairs", "transaction.timeout.ms": 60_000})
                    )
                    producer.init_transactions(_TRANSACTION_CALL_S)
                producer.begin_transaction()
                for partition in (0, 1):
                    producer.produce("pairs", b"%d" % number, partition=partition)
                producer.commit_transaction(_TRANSACTION_CALL_S)
            except KafkaException:
                # It is unknown whether the numbers were written. The next producer aborts the open
                # transaction and uses another number.
                producer = None
                continue
            self.acknowledged.pairs.append((number, _now_ms()))

    def _commit_offsets(self) -> None:
        consumer = Consumer(self._client(**{"group.id": GROUP, "enable.auto.commit": False}))
        try:
            while not self._stop.is_set():
                time.sleep(0.005)
                offset = len(self.acknowledged.numbers[0])
                try:
                    consumer.commit(offsets=[TopicPartition("numbers", 0, offset)], asynchronous=False)
                except KafkaException:
                    continue
                self.acknowledged.commits.append((offset, _now_ms()))
        finally:
            consumer.close()
