"""The demo's clients, each in a thread: one producer and the members of two groups."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec
from confluent_kafka import Consumer, KafkaError, TopicPartition

from headrace.cli.client import open_consumer, open_producer
from headrace.cli.demo.latency import Latencies
from headrace.cli.demo.ledger import Ledger
from headrace.cli.lookup import Partition
from headrace.cli.messages import next_batch
from headrace.cli.session import Session

__all__ = ["GROUPS", "TOPICS", "Counter", "Reader", "Slowness", "Writer"]

TOPICS = {"orders": 3, "clicks": 3, "payments": 2}
"""Names and partitions."""
SHARES = {"orders": 0.35, "clicks": 0.55, "payments": 0.10}
GROUPS = {"billing": ("orders", "payments"), "analytics": ("orders", "clicks")}
_TICK_S = 0.02
_PAGES = ("/", "/cart", "/search", "/item/7", "/item/42", "/help")


class Event(msgspec.Struct):
    """The part of a record's value that the ledger looks at."""

    run: str
    number: int
    sent_ns: int


@dataclass(slots=True)
class Counter:
    records: int = 0
    bytes: int = 0

    def add(self, size: int) -> None:
        self.records += 1
        self.bytes += size


class _Worker(threading.Thread):
    """A thread whose failure is kept for whoever waits for it."""

    def __init__(self, name: str) -> None:
        super().__init__(name=name, daemon=True)
        self.stopping = threading.Event()
        self.failure: BaseException | None = None

    def run(self) -> None:
        try:
            self.work()
        except BaseException as error:
            self.failure = error

    def work(self) -> None:
        raise NotImplementedError


class Writer(_Worker):
    def __init__(self, session: Session, ledger: Ledger, run: str, rate: int) -> None:
        super().__init__("demo-writer")
        self._ledger = ledger
        self._run_id = run
        self._rate = rate
        self._numbers = dict.fromkeys(TOPICS, 0)
        self._random = random.Random(7)  # noqa: S311  demo data
        self.counters = {topic: Counter() for topic in TOPICS}
        self.first_refusal = ""
        self._producer = open_producer(
            session,
            {
                "enable.idempotence": True,
                "partitioner": "murmur2_random",
                "linger.ms": 5,
                "compression.type": "lz4",
                "message.timeout.ms": 30_000,
            },
        )

    def work(self) -> None:
        began = time.perf_counter()
        due = dict.fromkeys(TOPICS, 0.0)
        while not self.stopping.wait(_TICK_S):
            passed = time.perf_counter() - began
            for topic, share in SHARES.items():
                # After a pause only a second's worth is made up for, not everything at once.
                due[topic] = max(due[topic], (passed - 1.0) * self._rate * share)
                while due[topic] < passed * self._rate * share:
                    self._write(topic)
                    due[topic] += 1
            self._producer.poll(0)
        self._producer.flush(35)

    def _write(self, topic: str) -> None:
        number = self._numbers[topic]
        self._numbers[topic] = number + 1
        customer = self._random.randrange(10_000)
        value = msgspec.json.encode(
            {
                "run": self._run_id,
                "number": number,
                "sent_ns": time.time_ns(),
                "customer": customer,
                **self._details(topic),
            }
        )

        def delivered(error: KafkaError | None, message: Any) -> None:
            if error is None:
                self.counters[topic].add(len(value))
                self._ledger.acknowledge((topic, message.partition()), message.offset(), number)
            else:
                self.first_refusal = self.first_refusal or error.str()
                self._ledger.refuse()

        self._ledger.sending()
        while True:
            try:
                self._producer.produce(topic, key=str(customer), value=value, on_delivery=delivered)
                return
            except BufferError:
                self._producer.poll(0.1)

    def _details(self, topic: str) -> dict[str, object]:
        if topic == "clicks":
            return {"page": self._random.choice(_PAGES)}
        return {"amount": self._random.randrange(100, 50_000), "currency": "EUR"}


@dataclass(slots=True)
class Slowness:
    """Reads at a given rate for some seconds, then as fast as it can for some, so that lag is seen to come and go."""

    rate: float
    slow_s: float = 8.0
    fast_s: float = 4.0
    lifted: bool = False

    def pause_after(self, records: int, since_start_s: float) -> float:
        if self.lifted or since_start_s % (self.slow_s + self.fast_s) > self.slow_s:
            return 0.0
        return records / self.rate


class Reader(_Worker):
    def __init__(
        self,
        session: Session,
        ledger: Ledger,
        group: str,
        run: str,
        *,
        slowness: Slowness | None,
        latencies: Latencies | None,
    ) -> None:
        super().__init__(f"demo-{group}")
        self.group = group
        self._ledger = ledger
        self._run_id = run
        self._slowness = slowness
        self._latencies = latencies
        self.counter = Counter()
        self.assigned = threading.Event()
        self._decode: Callable[[bytes], Event] = msgspec.json.Decoder(Event).decode
        self._consumer = open_consumer(
            session,
            {
                "group.id": group,
                "auto.offset.reset": "earliest",
                "enable.auto.offset.store": False,
                "auto.commit.interval.ms": 500,
                "fetch.wait.max.ms": 100,
                # A member hears of a newcomer with its next heartbeat; nobody wants to watch that for seconds.
                "heartbeat.interval.ms": 300,
                "partition.assignment.strategy": "cooperative-sticky",
            },
        )

    def work(self) -> None:
        began = time.perf_counter()
        try:
            self._consumer.subscribe(list(GROUPS[self.group]), on_assign=self._got)
            while not self.stopping.is_set():
                messages = next_batch(self._consumer, 200, 0.1)
                if not messages:
                    continue
                self._take(messages)
                if self._slowness is not None:
                    pause = self._slowness.pause_after(len(messages), time.perf_counter() - began)
                    self.stopping.wait(pause)
        finally:
            self._consumer.close()

    def _got(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        """The first answer to a newcomer may be nothing yet, until others have let go."""
        if partitions:
            self.assigned.set()

    def _take(self, messages: list[Any]) -> None:
        now_ns = time.time_ns()
        seen: list[tuple[Partition, int, int]] = []
        positions: dict[Partition, int] = {}
        for message in messages:
            if message.error() is not None:
                raise RuntimeError(f"group {self.group} cannot read: {message.error().str()}")
            where = (message.topic(), message.partition())
            positions[where] = message.offset() + 1
            event = self._decode(message.value())
            if event.run != self._run_id:
                continue  # An earlier demo's, when the data directory was kept.
            self.counter.add(len(message.value()))
            seen.append((where, message.offset(), event.number))
            if self._latencies is not None:
                self._latencies.add((now_ns - event.sent_ns) / 1e6)
        self._ledger.read(self.group, seen)
        held = {(one.topic, one.partition) for one in self._consumer.assignment()}
        self._consumer.store_offsets(
            offsets=[TopicPartition(*where, at) for where, at in positions.items() if where in held]
        )
