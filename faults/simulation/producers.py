"""Simulated producers: plain producers send each batch once, idempotent ones retry batches without a response.

The state of the producers survives the broker's crashes, like the state of real clients.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass, field

from faults.protocol.batches import build_batch
from faults.simulation.partition_oracle import PartitionOracle, Sent
from faults.simulation.requests import SimulatedBroker

__all__ = ["IdempotentWriter", "PlainWriter", "Target"]

_OUT_OF_ORDER, _UNKNOWN_TOPIC = 45, 3
_VALUE_BYTES_MAX = 120


@dataclass(frozen=True, slots=True)
class Target:
    """A partition to write to, and the oracle that records its acks."""

    topic: str
    partition: int
    key: tuple[bytes, int]
    oracle: PartitionOracle


ErrorHandler = Callable[[Target, int], None]
"""Called with the error code of every refused batch. It reports a problem if the error is not allowed."""


class PlainWriter:
    def __init__(
        self, rng: random.Random, now: Callable[[], float], now_ms: Callable[[], int], on_error: ErrorHandler
    ):
        self._rng = rng
        self._now = now
        self._now_ms = now_ms
        self._on_error = on_error
        self.in_flight = 0

    async def write(self, broker: SimulatedBroker, target: Target) -> None:
        batch, sent = self._batch(target)
        self.in_flight += 1
        error, offset = await broker.produce(target.topic, target.partition, batch)
        self._handle_response(target, sent, error, offset)

    def write_now(self, broker: SimulatedBroker, target: Target) -> None:
        """Append immediately, without waiting for the response."""
        batch, sent = self._batch(target)
        produced = broker.begin_produce(target.topic, target.partition, batch)
        self.in_flight += 1

        async def wait() -> None:
            self._handle_response(target, sent, *await broker.answer(produced))

        task = asyncio.ensure_future(wait())
        _WRITE_TASKS.add(task)
        task.add_done_callback(_WRITE_TASKS.discard)

    def _handle_response(self, target: Target, sent: Sent, error: int, offset: int) -> None:
        self.in_flight -= 1
        if error:
            self._on_error(target, error)
        else:
            target.oracle.ack(sent, offset, self._now())

    def _batch(self, target: Target) -> tuple[bytes, Sent]:
        values = some_values(self._rng, target.oracle)
        batch = build_batch(values, self._now_ms())
        return batch, target.oracle.send(batch, len(values))


_WRITE_TASKS: set[asyncio.Task[None]] = set()


@dataclass(slots=True)
class _Session:
    """The state of an idempotent producer for one partition."""

    sequence: int = 0
    pending: list[tuple[bytes, Sent]] = field(default_factory=list)


class IdempotentWriter:
    def __init__(
        self,
        rng: random.Random,
        now: Callable[[], float],
        now_ms: Callable[[], int],
        on_error: ErrorHandler,
        *,
        may_lose_data: bool,
        assigned_ids: set[int],
        report_problem: Callable[[str], None],
        on_missing_id: Callable[[int], None],
    ) -> None:
        self._rng = rng
        self._now = now
        self._now_ms = now_ms
        self._on_error = on_error
        self._may_lose_data = may_lose_data
        self._assigned_ids = assigned_ids
        self._object_to = report_problem
        self._on_missing_id = on_missing_id
        self._id: int | None = None
        self._sessions: dict[tuple[bytes, int], _Session] = {}
        self.in_flight = 0
        self.retried = 0

    async def write(self, broker: SimulatedBroker, target: Target) -> None:
        """Retry the batches without a response, then send a few new ones."""
        if self._id is None and not await self._init_producer(broker):
            return
        session = self._sessions.setdefault(target.key, _Session())
        self.retried += len(session.pending)
        for _ in range(self._rng.choice((1, 1, 2, 3))):
            if len(session.pending) < 5:
                session.pending.append(self._batch(target, session))
        # Append in order, before waiting for any response.
        self.in_flight += 1
        produced_batches = [
            (sent, broker.begin_produce(target.topic, target.partition, batch))
            for batch, sent in session.pending
        ]
        still_pending = []
        for (batch, sent), (_, produced) in zip(session.pending, produced_batches, strict=True):
            error, offset = await broker.answer(produced)
            if not error:
                target.oracle.ack(sent, offset, self._now())
                continue
            still_pending.append((batch, sent))
            if error == _OUT_OF_ORDER and (self._may_lose_data or len(still_pending) > 1):
                # The broker cannot accept the next batch after a refused one. If the broker may lose data, the client
                # starts over.
                if self._may_lose_data:
                    self._id = None
                    self._sessions.clear()
                    still_pending = []
                    break
                continue
            self._on_error(target, error)
        session.pending = still_pending
        self.in_flight -= 1

    async def _init_producer(self, broker: SimulatedBroker) -> bool:
        error, producer_id = await broker.new_producer()
        if error:
            self._on_missing_id(error)
            return False
        if producer_id in self._assigned_ids:
            self._object_to(f"producer id {producer_id} was assigned twice")
        self._assigned_ids.add(producer_id)
        self._id = producer_id
        return True

    def _batch(self, target: Target, session: _Session) -> tuple[bytes, Sent]:
        assert self._id is not None
        values = some_values(self._rng, target.oracle)
        sequence = session.sequence
        session.sequence += len(values)
        batch = build_batch(values, self._now_ms(), producer_id=self._id, epoch=0, sequence=sequence)
        return batch, target.oracle.send(batch, len(values), self._id, sequence)


def some_values(rng: random.Random, oracle: PartitionOracle) -> list[bytes]:
    number = len(oracle.sent)
    return [
        f"{oracle.name}:{number}.{index}:".encode() + rng.randbytes(rng.randint(0, _VALUE_BYTES_MAX))
        for index in range(rng.choice((1, 1, 2, 3)))
    ]
