"""Who writes while a broker is backed up and killed, and what of it was acknowledged when.

    numbers    two partitions, each 0, 1, 2 … from an idempotent producer
    pairs      two partitions, the same number in both by one transaction
    readers    a group that commits how far the first partition of numbers was acknowledged

Times are those of the machine's clock, in ms, taken when the answer was there.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from typing import Any

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

__all__ = ["GROUP", "Noted", "Writers"]

GROUP = "readers"
_TRY_S = 5.0


def _now_ms() -> int:
    return int(time.time() * 1000) + 1


@dataclass(slots=True)
class Noted:
    """What was acknowledged, with the time."""

    numbers: dict[int, list[tuple[int, int]]] = field(default_factory=lambda: {0: [], 1: []})
    pairs: list[tuple[int, int]] = field(default_factory=list)
    commits: list[tuple[int, int]] = field(default_factory=list)

    def count(self) -> int:
        return len(self.numbers[0]) + len(self.pairs) + len(self.commits)


class Writers:
    def __init__(self, bootstrap: str) -> None:
        self.noted = Noted()
        self.fell: list[str] = []
        self._bootstrap = bootstrap
        self._stop = threading.Event()
        self._threads = [
            threading.Thread(target=self._guarded, args=(work,), daemon=True)
            for work in (self._numbers, self._pairs, self._commits)
        ]
        for thread in self._threads:
            thread.start()

    def finish(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(60)
            if thread.is_alive():
                self.fell.append(f"{thread.name} did not end")

    def _guarded(self, work: Any) -> None:
        try:
            work()
        # Told to whoever judges: a writer that ends early proves nothing.
        except Exception as error:
            self.fell.append(f"{work.__name__}: {type(error).__name__}: {error}")

    def _client(self, **settings: Any) -> dict[str, Any]:
        return {
            "bootstrap.servers": self._bootstrap,
            "log_level": 0,
            "reconnect.backoff.ms": 5,
            "reconnect.backoff.max.ms": 50,
            "retry.backoff.ms": 5,
            **settings,
        }

    def _numbers(self) -> None:
        producer = Producer(self._client(**{"enable.idempotence": True, "linger.ms": 1}))

        def delivered(error: Any, message: Any) -> None:
            if error is None:
                self.noted.numbers[message.partition()].append((int(message.value()), _now_ms()))
            else:
                self.fell.append(f"number {message.value()!r} was not taken: {error}")

        number = 0
        while not self._stop.is_set():
            for partition in (0, 1):
                producer.produce("numbers", b"%d" % number, partition=partition, on_delivery=delivered)
            number += 1
            producer.poll(0.001)
        if producer.flush(30):
            self.fell.append("numbers were never answered")

    def _pairs(self) -> None:
        number, producer = 0, None
        while not self._stop.is_set():
            number += 1
            try:
                if producer is None:
                    producer = Producer(
                        self._client(**{"transactional.id": "pairs", "transaction.timeout.ms": 60_000})
                    )
                    producer.init_transactions(_TRY_S)
                producer.begin_transaction()
                for partition in (0, 1):
                    producer.produce("pairs", b"%d" % number, partition=partition)
                producer.commit_transaction(_TRY_S)
            except KafkaException:
                # It may be there or not; the next producer ends what is open, under another number.
                producer = None
                continue
            self.noted.pairs.append((number, _now_ms()))

    def _commits(self) -> None:
        consumer = Consumer(self._client(**{"group.id": GROUP, "enable.auto.commit": False}))
        try:
            while not self._stop.is_set():
                time.sleep(0.005)
                offset = len(self.noted.numbers[0])
                try:
                    consumer.commit(offsets=[TopicPartition("numbers", 0, offset)], asynchronous=False)
                except KafkaException:
                    continue
                self.noted.commits.append((offset, _now_ms()))
        finally:
            consumer.close()
