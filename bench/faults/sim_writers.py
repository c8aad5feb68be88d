"""Simulated producers: plain ones, which send each batch once, and idempotent ones, which send again what was not
answered.

Their memory is their own and outlives the broker's process, as that of real clients does.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass, field

from bench.faults.batches import build_batch
from bench.faults.sim_book import Book, Sent
from bench.faults.sim_door import Door

__all__ = ["IdempotentWriter", "PlainWriter", "Target"]

_OUT_OF_ORDER, _UNKNOWN_TOPIC = 45, 3
_VALUE_BYTES_MAX = 120


@dataclass(frozen=True, slots=True)
class Target:
    """A partition to write to, and where its acks are noted."""

    topic: str
    partition: int
    key: tuple[bytes, int]
    book: Book


Refused = Callable[[Target, int], None]
"""Told of every answer that is an error; objects if it should not have been."""


class PlainWriter:
    def __init__(
        self, rng: random.Random, now: Callable[[], float], now_ms: Callable[[], int], refused: Refused
    ):
        self._rng = rng
        self._now = now
        self._now_ms = now_ms
        self._refused = refused
        self.in_flight = 0

    async def write(self, door: Door, target: Target) -> None:
        batch, one = self._batch(target)
        self.in_flight += 1
        error, offset = await door.produce(target.topic, target.partition, batch)
        self._take(target, one, error, offset)

    def write_now(self, door: Door, target: Target) -> None:
        """Append in this very moment; the answer is awaited apart."""
        batch, one = self._batch(target)
        produced = door.begin_produce(target.topic, target.partition, batch)
        self.in_flight += 1

        async def wait() -> None:
            self._take(target, one, *await door.answer(produced))

        task = asyncio.ensure_future(wait())
        _kept.add(task)
        task.add_done_callback(_kept.discard)

    def _take(self, target: Target, one: Sent, error: int, offset: int) -> None:
        self.in_flight -= 1
        if error:
            self._refused(target, error)
        else:
            target.book.ack(one, offset, self._now())

    def _batch(self, target: Target) -> tuple[bytes, Sent]:
        values = some_values(self._rng, target.book)
        batch = build_batch(values, self._now_ms())
        return batch, target.book.send(batch, len(values))


_kept: set[asyncio.Task[None]] = set()


@dataclass(slots=True)
class _Session:
    """What an idempotent producer remembers of one partition."""

    sequence: int = 0
    unanswered: list[tuple[bytes, Sent]] = field(default_factory=list)


class IdempotentWriter:
    def __init__(
        self,
        rng: random.Random,
        now: Callable[[], float],
        now_ms: Callable[[], int],
        refused: Refused,
        *,
        may_lose: bool,
        given_ids: set[int],
        object_to: Callable[[str], None],
        no_id: Callable[[int], None],
    ) -> None:
        self._rng = rng
        self._now = now
        self._now_ms = now_ms
        self._refused = refused
        self._may_lose = may_lose
        self._given_ids = given_ids
        self._object_to = object_to
        self._no_id = no_id
        self._id: int | None = None
        self._sessions: dict[tuple[bytes, int], _Session] = {}
        self.in_flight = 0
        self.sent_again = 0

    async def write(self, door: Door, target: Target) -> None:
        """Send a few new batches behind whatever was not answered yet."""
        if self._id is None and not await self._begin(door):
            return
        session = self._sessions.setdefault(target.key, _Session())
        self.sent_again += len(session.unanswered)
        for _ in range(self._rng.choice((1, 1, 2, 3))):
            if len(session.unanswered) < 5:
                session.unanswered.append(self._batch(target, session))
        # The appends are done in order, before any answer is waited for.
        self.in_flight += 1
        begun = [
            (one, door.begin_produce(target.topic, target.partition, batch))
            for batch, one in session.unanswered
        ]
        left = []
        for (batch, one), (_, produced) in zip(session.unanswered, begun, strict=True):
            error, offset = await door.answer(produced)
            if not error:
                target.book.ack(one, offset, self._now())
                continue
            left.append((batch, one))
            if error == _OUT_OF_ORDER and (self._may_lose or len(left) > 1):
                # Behind one that was refused the next cannot be taken. Where the broker itself may forget, it is the
                # client's cue to begin anew.
                if self._may_lose:
                    self._id = None
                    self._sessions.clear()
                    left = []
                    break
                continue
            self._refused(target, error)
        session.unanswered = left
        self.in_flight -= 1

    async def _begin(self, door: Door) -> bool:
        error, producer_id = await door.new_producer()
        if error:
            self._no_id(error)
            return False
        if producer_id in self._given_ids:
            self._object_to(f"producer id {producer_id} was given out twice")
        self._given_ids.add(producer_id)
        self._id = producer_id
        return True

    def _batch(self, target: Target, session: _Session) -> tuple[bytes, Sent]:
        assert self._id is not None
        values = some_values(self._rng, target.book)
        sequence = session.sequence
        session.sequence += len(values)
        batch = build_batch(values, self._now_ms(), producer_id=self._id, epoch=0, sequence=sequence)
        return batch, target.book.send(batch, len(values), self._id, sequence)


def some_values(rng: random.Random, book: Book) -> list[bytes]:
    number = len(book.sent)
    return [
        f"{book.name}:{number}.{index}:".encode() + rng.randbytes(rng.randint(0, _VALUE_BYTES_MAX))
        for index in range(rng.choice((1, 1, 2, 3)))
    ]
