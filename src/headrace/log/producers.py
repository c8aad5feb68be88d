"""What a partition remembers of idempotent producers: enough to know a repeated batch, and to refuse a gap.

A producer numbers its records per partition. The last five batches of each are remembered, because a client
may have five requests under way; a batch that is among them was written before and is answered with its first
offset, never written twice.

The marker that ends a transaction also says which epoch the producer writes under from then on. Where it raised the
epoch, what an older epoch sends late is refused, so no record of one transaction can slip into the next. A producer
whose transaction is open is never forgotten.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Container, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from headrace.errors import StorageError
from headrace.records import BatchHeader

__all__ = [
    "REMEMBERED_BATCHES",
    "OutOfOrderSequence",
    "Producer",
    "Producers",
    "RememberedBatch",
    "StaleProducerEpoch",
]

REMEMBERED_BATCHES = 5
_SEQUENCE_LIMIT = 2**31
# As long as clients go on trying by default. One that gave up a batch and goes on behind it is told of the gap then.
_REFUSED_MS = 120_000


class OutOfOrderSequence(StorageError):
    code = "HR-LOG-SEQUENCE"

    def __init__(self, producer_id: int, found: int, expected: int) -> None:
        super().__init__(
            f"producer {producer_id} sent sequence {found} where {expected} comes next",
            hint="a batch before this one was lost on its way; the client must start a new session",
        )


class StaleProducerEpoch(StorageError):
    code = "HR-LOG-PRODUCER-EPOCH"

    def __init__(self, producer_id: int, found: int, current: int) -> None:
        super().__init__(f"producer {producer_id} has epoch {found}, but epoch {current} has taken over")


@dataclass(frozen=True, slots=True)
class RememberedBatch:
    first_sequence: int
    last_sequence: int
    base_offset: int
    last_offset: int
    timestamp: int


@dataclass(slots=True)
class Producer:
    producer_id: int
    epoch: int
    seen_ms: int
    awaited_sequence: int | None = None
    """Of a producer that has no batches: the only sequence to begin with. It is where the very first batch could not
    be written, or 0 behind a marker.
    """
    coordinator_epoch: int = -1
    """Of the last marker, -1 if there was none."""
    batches: deque[RememberedBatch] = field(default_factory=lambda: deque(maxlen=REMEMBERED_BATCHES))


class _Refused(NamedTuple):
    """The batch that a producer has to send again, because it could not be written."""

    epoch: int
    sequence: int
    at_ms: int


class Producers:
    """All producers of one partition; at most ``limit`` of them, the one longest unseen is forgotten first, but
    none of those that are ``kept``.
    """

    def __init__(self, limit: int = 10_000, *, kept: Container[int] = ()) -> None:
        self._by_id: dict[int, Producer] = {}
        self._limit = limit
        self._refused: dict[int, _Refused] = {}
        self._kept = kept

    def __len__(self) -> int:
        return len(self._by_id)

    def __iter__(self) -> Iterator[Producer]:
        return iter(self._by_id.values())

    def find(self, producer_id: int) -> Producer | None:
        return self._by_id.get(producer_id)

    def check(self, header: BatchHeader, *, begins_at_zero: bool = False) -> RememberedBatch | None:
        """The earlier copy of this batch if there is one; raises where the batch does not follow what came
        before.

        ``begins_at_zero``: a producer of which nothing is known has to begin with sequence 0.
        """
        producer = self._by_id.get(header.producer_id)
        if producer is None:
            if begins_at_zero and header.base_sequence != 0:
                raise OutOfOrderSequence(header.producer_id, header.base_sequence, 0)
            # Nothing is known: all of its batches may have been deleted by retention, so any sequence is
            # taken.
            return None
        if header.producer_epoch < producer.epoch:
            raise StaleProducerEpoch(header.producer_id, header.producer_epoch, producer.epoch)
        if header.producer_epoch > producer.epoch:
            if header.base_sequence != 0:
                raise OutOfOrderSequence(header.producer_id, header.base_sequence, 0)
            return None
        for batch in producer.batches:
            if batch.first_sequence == header.base_sequence and batch.last_sequence == header.last_sequence:
                return batch
        expected = producer.awaited_sequence
        if producer.batches:
            expected = (producer.batches[-1].last_sequence + 1) % _SEQUENCE_LIMIT
        if expected is not None and header.base_sequence != expected:
            raise OutOfOrderSequence(header.producer_id, header.base_sequence, expected)
        return None

    def await_again(self, header: BatchHeader, now_ms: int) -> None:
        """The batch could not be written. Those that are under way behind it must not take its place, also where
        nothing is known of the producer yet.
        """
        self._refused.pop(header.producer_id, None)
        self._refused[header.producer_id] = _Refused(header.producer_epoch, header.base_sequence, now_ms)
        if len(self._refused) > self._limit:
            del self._refused[next(iter(self._refused))]
        if header.producer_id not in self._by_id:
            self._by_id[header.producer_id] = Producer(
                header.producer_id, header.producer_epoch, now_ms, header.base_sequence
            )
            self._keep_limit()

    def is_behind_refused(self, header: BatchHeader, now_ms: int) -> bool:
        """Whether this batch is out of order only because one before it, which is due again, could not be written.

        To be told of a gap, some clients take a new epoch and send all again that they have no answer for; what of it
        had been written before would then be there twice. Told that this one was not written either, they send both.
        """
        refused = self._refused.get(header.producer_id)
        return (
            refused is not None
            and refused.epoch == header.producer_epoch
            and now_ms - refused.at_ms < _REFUSED_MS
            and 0 < (header.base_sequence - refused.sequence) % _SEQUENCE_LIMIT < _SEQUENCE_LIMIT // 2
        )

    def note(self, header: BatchHeader, base_offset: int, now_ms: int) -> None:
        """Remember a batch that was written."""
        self._refused.pop(header.producer_id, None)
        producer = self._seen(header.producer_id, header.producer_epoch, now_ms)
        producer.batches.append(
            RememberedBatch(
                header.base_sequence,
                header.last_sequence,
                base_offset,
                base_offset + header.last_offset_delta,
                header.max_timestamp,
            )
        )
        self._keep_limit()

    def note_marker(self, header: BatchHeader, coordinator_epoch: int, now_ms: int) -> None:
        """Remember a marker that was written: the producer goes on under its epoch, with sequence 0 if that is
        new here.
        """
        producer = self._seen(header.producer_id, header.producer_epoch, now_ms)
        producer.coordinator_epoch = coordinator_epoch
        if not producer.batches:
            producer.awaited_sequence = 0
        self._keep_limit()

    def _seen(self, producer_id: int, epoch: int, now_ms: int) -> Producer:
        producer = self._by_id.pop(producer_id, None)
        if producer is None:
            producer = Producer(producer_id, epoch, now_ms)
        elif producer.epoch != epoch:
            producer = Producer(producer_id, epoch, now_ms, coordinator_epoch=producer.coordinator_epoch)
        # Re-inserted at the end, so that the first of the dictionary is the one longest unseen.
        self._by_id[producer_id] = producer
        producer.seen_ms = now_ms
        return producer

    def _keep_limit(self) -> None:
        for _ in range(len(self._by_id) if len(self._by_id) > self._limit else 0):
            producer_id = next(iter(self._by_id))
            producer = self._by_id.pop(producer_id)
            if producer_id not in self._kept:
                return
            self._by_id[producer_id] = producer

    def restore(self, producer: Producer) -> None:
        self._by_id[producer.producer_id] = producer

    def expire(self, seen_before_ms: int) -> int:
        """Forget producers that were last seen before the given time; returns how many."""
        stale = [
            p.producer_id
            for p in self._by_id.values()
            if p.seen_ms < seen_before_ms and p.producer_id not in self._kept
        ]
        for producer_id in stale:
            del self._by_id[producer_id]
        return len(stale)
