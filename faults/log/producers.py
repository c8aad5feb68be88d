"""The three kinds of producers of a run. Each can lose different records:

RawProducer              one connection, pipelined requests, every response recorded; it never retries
IdempotentRawProducer    the same with a producer id: after a lost connection it retries the requests without a
                         response, as clients do, and must get the offsets of the first attempt
StockProducer            librdkafka, with its own batching, retries and optional idempotence
"""

from __future__ import annotations

import random
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from confluent_kafka import KafkaException, Producer

from faults.log.client_thread import ClientThread
from faults.log.oracle import Ledger, PartitionId, Sent
from faults.protocol import calls
from faults.protocol.batches import build_batch
from faults.protocol.connection import Connection, Gone

__all__ = ["IdempotentRawProducer", "ProduceResult", "RawProducer", "StockProducer"]

_DUPLICATE_SEQUENCE = 46
_OUT_OF_ORDER = 45


class _Request:
    """One batch in flight."""

    __slots__ = ("batch", "sent", "sent_at")

    def __init__(self, sent: list[Sent], batch: bytes) -> None:
        self.sent = sent
        self.batch = batch
        self.sent_at = 0.0

    @property
    def partition_id(self) -> PartitionId:
        return self.sent[0].partition_id


@dataclass(frozen=True, slots=True)
class ProduceResult:
    """The response to one batch, with wall-clock times that can be compared with those in a trace of system calls."""

    partition_id: PartitionId
    error: int
    sent_at: float
    answered_at: float


class RawProducer(ClientThread):
    """``refusals`` are the error codes that the fault may cause; any other error is a problem. ``results`` has one
    entry per response.
    """

    def __init__(
        self,
        name: str,
        port: int,
        ledger: Ledger,
        partition_ids: Sequence[PartitionId],
        rng: random.Random,
        *,
        in_flight_max: int = 5,
        records_max: int = 20,
        value_bytes_max: int = 400,
        pause_s: float = 0.0,
        refusals: frozenset[int] = frozenset(),
        timeout_s: float = 10.0,
    ) -> None:
        super().__init__(name, port, ledger, timeout_s=timeout_s)
        self._partition_ids = list(partition_ids)
        self._rng = rng
        self._in_flight_max = in_flight_max
        self._records_max = records_max
        self._value_bytes_max = value_bytes_max
        self._pause_s = pause_s
        self._number = 0
        self._requests = 0
        self._pending: deque[_Request] = deque()
        self._refusals = refusals
        self.results: list[ProduceResult] = []

    @property
    def in_flight(self) -> int:
        return len(self._pending)

    def work(self) -> None:
        while not self.finishing or (self._pending and not self.gave_up):
            connection = self.connect()
            if connection is None:
                return
            with connection:
                try:
                    self._send_and_receive(connection)
                except Gone:
                    self._on_disconnect()

    def _send_and_receive(self, connection: Connection) -> None:
        self._on_connect(connection)
        while not self.gave_up:
            if not self.finishing and len(self._pending) < self._in_flight_max:
                request = self._next()
                self._pending.append(request)
                self._send(connection, request)
                if self._pause_s:
                    time.sleep(self._rng.random() * self._pause_s)
                if self._rng.random() < 0.5:
                    continue
            if not self._pending:
                return
            _, reader = connection.receive()
            self._answer(connection, self._pending.popleft(), calls.read_produce_answer(reader)[0])

    def _on_connect(self, connection: Connection) -> None:
        """Start with a new connection. The requests in flight on the previous connection get no response."""
        self._pending.clear()

    def _on_disconnect(self) -> None:
        self._pending.clear()

    def _send(self, connection: Connection, request: _Request) -> None:
        topic, partition = request.partition_id
        request.sent_at = time.time()
        connection.send(calls.PRODUCE, 7, calls.produce_body(topic, {partition: request.batch}))

    def _next(self) -> _Request:
        partition_id = self._rng.choice(self._partition_ids)
        self._requests += 1
        sent = []
        for _ in range(self._rng.randint(1, self._records_max)):
            self._number += 1
            padding = self._rng.randbytes(self._rng.randint(0, self._value_bytes_max))
            value = f"{self.name}:{self._number}:".encode() + padding
            sent.append(
                Sent(
                    partition_id,
                    value,
                    self.name,
                    self._number,
                    self._requests,
                    once=True,
                    ordered=self.ordered,
                )
            )
        self.ledger.send(sent)
        return _Request(sent, self._build(partition_id, [record.value for record in sent]))

    ordered = False

    def _build(self, partition_id: PartitionId, values: Sequence[bytes]) -> bytes:
        return build_batch(values, int(time.time() * 1000))

    def _answer(self, connection: Connection, request: _Request, answer: calls.ProduceAnswer) -> None:
        self._record_result(request, answer.error)
        if answer.error == 0:
            self.ledger.ack(request.sent, answer.base_offset)
            self.ledger.record_start(request.partition_id, answer.log_start_offset)
        elif answer.error not in self._refusals:
            self.ledger.report_problem(
                f"{self.name} received error {answer.error} from {request.partition_id}"
            )

    def _record_result(self, request: _Request, error: int) -> None:
        self.results.append(ProduceResult(request.partition_id, error, request.sent_at, time.time()))


class IdempotentRawProducer(RawProducer):
    ordered = True

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._producer: tuple[int, int] | None = None
        self._sequences: dict[PartitionId, int] = {}
        self.retried = 0

    def _on_connect(self, connection: Connection) -> None:
        # The producer keeps its first id across all restarts. It requests further ids only to check that none
        # repeats.
        error, producer_id, epoch = calls.init_producer_id(connection)
        if error:
            raise Gone(f"the broker assigned no producer id: error {error}")
        self.ledger.record_producer_id(producer_id)
        if self._producer is None:
            self._producer = (producer_id, epoch)
        self._send_pending(connection)

    def _on_disconnect(self) -> None:
        pass

    def _send_pending(self, connection: Connection) -> None:
        self.retried += len(self._pending)
        for request in self._pending:
            self._send(connection, request)

    def _build(self, partition_id: PartitionId, values: Sequence[bytes]) -> bytes:
        assert self._producer is not None
        sequence = self._sequences.get(partition_id, 0)
        self._sequences[partition_id] = sequence + len(values)
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
            self._record_result(request, answer.error)
            self._retry(connection, request)
        else:
            super()._answer(connection, request, answer)

    def _retry(self, connection: Connection, refused: _Request) -> None:
        """Retry the refused batch and the later batches that were refused because of it, in their original order."""
        to_retry = [refused]
        try:
            while self._pending:
                _, reader = connection.receive()
                request, answer = self._pending.popleft(), calls.read_produce_answer(reader)[0]
                if answer.error in self._refusals or answer.error == _OUT_OF_ORDER:
                    self._record_result(request, answer.error)
                    to_retry.append(request)
                else:
                    self._answer(connection, request, answer)
        finally:
            # Keep the refused requests even if the connection was lost: the next connection then sends all of
            # them again.
            self._pending.extendleft(reversed(to_retry))
        time.sleep(0.02)
        if not self.gave_up:
            self._send_pending(connection)


class StockProducer(ClientThread):
    def __init__(
        self,
        name: str,
        port: int,
        ledger: Ledger,
        partition_ids: Sequence[PartitionId],
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
        self._partition_ids = list(partition_ids)
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
            self.ledger.report_problem(f"{self.name}: librdkafka gave up: {error.str()}")

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
        partition_id = self._rng.choice(self._partition_ids)
        padding = self._rng.randbytes(self._rng.randint(0, self._value_bytes_max))
        value = f"{self.name}:{number}:".encode() + padding
        sent = Sent(partition_id, value, self.name, number, once=self._idempotent, ordered=self._idempotent)

        def on_delivery(error: Any, message: Any) -> None:
            self._outstanding -= 1
            if error is None:
                self.ledger.ack([sent], message.offset())
            elif not self.gave_up:
                self.refused.append(error.name())
                self.ledger.report_problem(f"{self.name}: record {number} was not delivered: {error.str()}")

        self.ledger.send([sent])
        self._outstanding += 1
        try:
            producer.produce(partition_id[0], value, partition=partition_id[1], on_delivery=on_delivery)
        except (BufferError, KafkaException) as error:
            self._outstanding -= 1
            self.ledger.report_problem(f"{self.name}: {error}")
