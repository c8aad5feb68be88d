"""Producers of a run. Three kinds, because they can lose different things:

RawProducer                one connection, requests sent ahead, every answer noted; never sends again
IdempotentRawProducer      the same, with a producer id: after a broken connection it sends again what was not
                           answered, as clients do, and must get the offsets of the first time
StockProducer              librdkafka, with its own batching, retries and, if wished, idempotence
"""

from __future__ import annotations

import random
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from confluent_kafka import KafkaException, Producer

from bench.faults import calls
from bench.faults.batches import build_batch
from bench.faults.connection import Connection, Gone
from bench.faults.oracle import Ledger, Place, Sent
from bench.faults.worker import Worker

__all__ = ["Answered", "IdempotentRawProducer", "RawProducer", "StockProducer"]

_DUPLICATE_SEQUENCE = 46
_OUT_OF_ORDER = 45


class _Request:
    """One batch under way."""

    __slots__ = ("batch", "sent", "sent_at")

    def __init__(self, sent: list[Sent], batch: bytes) -> None:
        self.sent = sent
        self.batch = batch
        self.sent_at = 0.0

    @property
    def place(self) -> Place:
        return self.sent[0].place


@dataclass(frozen=True, slots=True)
class Answered:
    """One answer to one batch; the times are the wall clock's, to be held against a trace."""

    place: Place
    error: int
    sent_at: float
    answered_at: float


class RawProducer(Worker):
    """``refusals``: error numbers that the fault may bring; any other is a finding. ``answers`` has all of them."""

    def __init__(
        self,
        name: str,
        port: int,
        ledger: Ledger,
        places: Sequence[Place],
        rng: random.Random,
        *,
        ahead_max: int = 5,
        records_max: int = 20,
        value_bytes_max: int = 400,
        pause_s: float = 0.0,
        refusals: frozenset[int] = frozenset(),
        timeout_s: float = 10.0,
    ) -> None:
        super().__init__(name, port, ledger, timeout_s=timeout_s)
        self._places = list(places)
        self._rng = rng
        self._ahead_max = ahead_max
        self._records_max = records_max
        self._value_bytes_max = value_bytes_max
        self._pause_s = pause_s
        self._number = 0
        self._requests = 0
        self._under_way: deque[_Request] = deque()
        self._refusals = refusals
        self.answers: list[Answered] = []

    @property
    def in_flight(self) -> int:
        return len(self._under_way)

    def work(self) -> None:
        while not self.finishing or (self._under_way and not self.gave_up):
            connection = self.connect()
            if connection is None:
                return
            with connection:
                try:
                    self._serve(connection)
                except Gone:
                    self._after_break()

    def _serve(self, connection: Connection) -> None:
        self._begin(connection)
        while not self.gave_up:
            if not self.finishing and len(self._under_way) < self._ahead_max:
                request = self._next()
                self._under_way.append(request)
                self._send(connection, request)
                if self._pause_s:
                    time.sleep(self._rng.random() * self._pause_s)
                if self._rng.random() < 0.5:
                    continue
            if not self._under_way:
                return
            _, reader = connection.receive()
            self._answer(connection, self._under_way.popleft(), calls.read_produce_answer(reader)[0])

    def _begin(self, connection: Connection) -> None:
        """A new connection: what was under way on the one before stays unanswered for good."""
        self._under_way.clear()

    def _after_break(self) -> None:
        self._under_way.clear()

    def _send(self, connection: Connection, request: _Request) -> None:
        topic, partition = request.place
        request.sent_at = time.time()
        connection.send(calls.PRODUCE, 7, calls.produce_body(topic, {partition: request.batch}))

    def _next(self) -> _Request:
        place = self._rng.choice(self._places)
        self._requests += 1
        sent = []
        for _ in range(self._rng.randint(1, self._records_max)):
            self._number += 1
            padding = self._rng.randbytes(self._rng.randint(0, self._value_bytes_max))
            value = f"{self.name}:{self._number}:".encode() + padding
            sent.append(
                Sent(place, value, self.name, self._number, self._requests, once=True, ordered=self.ordered)
            )
        self.ledger.send(sent)
        return _Request(sent, self._build(place, [one.value for one in sent]))

    ordered = False

    def _build(self, place: Place, values: Sequence[bytes]) -> bytes:
        return build_batch(values, int(time.time() * 1000))

    def _answer(self, connection: Connection, request: _Request, answer: calls.ProduceAnswer) -> None:
        self._note(request, answer.error)
        if answer.error == 0:
            self.ledger.ack(request.sent, answer.base_offset)
            self.ledger.saw_start(request.place, answer.log_start_offset)
        elif answer.error not in self._refusals:
            self.ledger.object(f"{self.name} got error {answer.error} from {request.place}")

    def _note(self, request: _Request, error: int) -> None:
        self.answers.append(Answered(request.place, error, request.sent_at, time.time()))


class IdempotentRawProducer(RawProducer):
    ordered = True

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._producer: tuple[int, int] | None = None
        self._sequences: dict[Place, int] = {}
        self.sent_again = 0

    def _begin(self, connection: Connection) -> None:
        # One id is enough for all runs of the broker; the others are asked for to see that they are new.
        error, producer_id, epoch = calls.init_producer_id(connection)
        if error:
            raise Gone(f"no producer id: error {error}")
        self.ledger.take_producer_id(producer_id)
        if self._producer is None:
            self._producer = (producer_id, epoch)
        self._send_again(connection)

    def _after_break(self) -> None:
        pass

    def _send_again(self, connection: Connection) -> None:
        self.sent_again += len(self._under_way)
        for request in self._under_way:
            self._send(connection, request)

    def _build(self, place: Place, values: Sequence[bytes]) -> bytes:
        assert self._producer is not None
        sequence = self._sequences.get(place, 0)
        self._sequences[place] = sequence + len(values)
        return build_batch(
            values,
            int(time.time() * 1000),
            producer_id=self._producer[0],
            epoch=self._producer[1],
            sequence=sequence,
        )

    def _answer(self, connection: Connection, request: _Request, answer: calls.ProduceAnswer) -> None:
        if answer.error == _DUPLICATE_SEQUENCE:
            self.ledger.ack(request.sent, None)
        elif answer.error in self._refusals:
            self._note(request, answer.error)
            self._retry(connection, request)
        else:
            super()._answer(connection, request, answer)

    def _retry(self, connection: Connection, refused: _Request) -> None:
        """What was refused, and what was refused because it came behind, goes out again in its old order."""
        again = [refused]
        try:
            while self._under_way:
                _, reader = connection.receive()
                request, answer = self._under_way.popleft(), calls.read_produce_answer(reader)[0]
                if answer.error in self._refusals or answer.error == _OUT_OF_ORDER:
                    self._note(request, answer.error)
                    again.append(request)
                else:
                    self._answer(connection, request, answer)
        finally:
            # Also where the connection broke: then all of it goes out on the next one.
            self._under_way.extendleft(reversed(again))
        time.sleep(0.02)
        if not self.gave_up:
            self._send_again(connection)


class StockProducer(Worker):
    def __init__(
        self,
        name: str,
        port: int,
        ledger: Ledger,
        places: Sequence[Place],
        rng: random.Random,
        *,
        idempotent: bool,
        compression: str = "none",
        value_bytes_max: int = 400,
        outstanding_max: int = 300,
        pause_s: float = 0.002,
        settings: dict[str, Any] | None = None,
    ) -> None:
        super().__init__(name, port, ledger)
        self._places = list(places)
        self._rng = rng
        self._idempotent = idempotent
        self._value_bytes_max = value_bytes_max
        self._outstanding_max = outstanding_max
        self._pause_s = pause_s
        self._outstanding = 0
        self.refused: list[str] = []
        self._settings: dict[str, Any] = {
            "bootstrap.servers": f"127.0.0.1:{port}",
            "client.id": name,
            "acks": "all",
            "enable.idempotence": idempotent,
            "compression.type": compression,
            "linger.ms": rng.choice([0, 1, 5]),
            "batch.num.messages": rng.choice([10, 100, 10_000]),
            "message.timeout.ms": 120_000,
            "reconnect.backoff.ms": 5,
            "reconnect.backoff.max.ms": 20,
            "retry.backoff.ms": 5,
            "retry.backoff.max.ms": 20,
            "topic.metadata.refresh.interval.ms": 200,
            "topic.metadata.refresh.fast.interval.ms": 10,
            "topic.metadata.propagation.max.ms": 60_000,
            "log_level": 0,
            "error_cb": self._on_error,
        } | (settings or {})

    @property
    def in_flight(self) -> int:
        return self._outstanding

    def _on_error(self, error: Any) -> None:
        if error.fatal():
            self.ledger.object(f"{self.name}: librdkafka gave up: {error.str()}")

    def work(self) -> None:
        producer = Producer(self._settings)
        number = 0
        while not self.finishing:
            if self._outstanding >= self._outstanding_max:
                producer.poll(0.01)
                continue
            for _ in range(self._rng.randint(1, 20)):
                number += 1
                self._send_one(producer, number)
            time.sleep(self._rng.random() * self._pause_s)
            producer.poll(0)
        while self._outstanding and not self.gave_up:
            producer.poll(0.01)
        if self.gave_up:
            producer.purge()
        producer.flush(5)

    def _send_one(self, producer: Producer, number: int) -> None:
        place = self._rng.choice(self._places)
        padding = self._rng.randbytes(self._rng.randint(0, self._value_bytes_max))
        value = f"{self.name}:{number}:".encode() + padding
        sent = Sent(place, value, self.name, number, once=self._idempotent, ordered=self._idempotent)

        def delivered(error: Any, message: Any) -> None:
            self._outstanding -= 1
            if error is None:
                self.ledger.ack([sent], message.offset())
            elif not self.gave_up:
                self.refused.append(error.name())
                self.ledger.object(f"{self.name}: record {number} was not delivered: {error.str()}")

        self.ledger.send([sent])
        self._outstanding += 1
        try:
            producer.produce(place[0], value, partition=place[1], on_delivery=delivered)
        except (BufferError, KafkaException) as error:
            self._outstanding -= 1
            self.ledger.object(f"{self.name}: {error}")
