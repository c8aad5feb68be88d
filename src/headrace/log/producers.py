"""What a partition remembers of idempotent producers: enough to know a repeated batch, and to refuse a gap.

A producer numbers its records per partition. The last five batches of each are remembered, because a client
may have five requests under way; a batch that is among them was written before and is answered with its first
offset, never written twice.

What is remembered has a limit for each partition, and a ``ProducerQuota`` over all of them. Past these a new producer
takes the place of the one longest unseen in its partition, which is then taken for new.

The marker that ends a transaction also says which epoch the producer writes under from then on. Where it raised the
epoch, what an older epoch sends late is refused, so no record of one transaction can slip into the next. A producer
whose transaction is open is never forgotten.
"""

from __future__ import annotations

from collections.abc import Container, Iterator
from typing import NamedTuple

import msgspec

from headrace.errors import StorageError
from headrace.records import BatchHeader

__all__ = [
    "REMEMBERED_BATCHES",
    "OutOfOrderSequence",
    "Producer",
    "ProducerQuota",
    "Producers",
    "RememberedBatch",
    "StaleProducerEpoch",
]

REMEMBERED_BATCHES = 5
_SEQUENCE_LIMIT = 2**31
# So many of a partition are remembered whatever others do.
_KEPT_MIN = 5
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


# There may be many of both, and they hold numbers only: the garbage collector need not look at them.
class RememberedBatch(msgspec.Struct, frozen=True, gc=False):
    first_sequence: int
    last_sequence: int
    base_offset: int
    last_offset: int
    timestamp: int


class Producer(msgspec.Struct, gc=False):
    producer_id: int
    epoch: int
    seen_ms: int
    awaited_sequence: int | None = None
    """Of a producer that has no batches: the only sequence to begin with. It is where the very first batch could not
    be written, or 0 behind a marker.
    """
    coordinator_epoch: int = -1
    """Of the last marker, -1 if there was none."""
    batches: tuple[RememberedBatch, ...] = ()
    """The last of them, the newest at the end."""

    def remember(self, batch: RememberedBatch) -> None:
        self.batches = (*self.batches[-(REMEMBERED_BATCHES - 1) :], batch)


class _Refused(NamedTuple):
    """The batch that a producer has to send again, because it could not be written."""

    epoch: int
    sequence: int
    at_ms: int


class ProducerQuota:
    """How many producers all partitions together remember. Each may have a few beyond it."""

    __slots__ = ("limit", "used")

    def __init__(self, limit: int = 75_000) -> None:
        self.limit = limit
        self.used = 0

    @property
    def is_exceeded(self) -> bool:
        return self.used > self.limit


class Producers:
    """All producers of one partition; at most ``limit`` of them, the one longest unseen is forgotten first, but
    none of those that are ``kept``.
    """

    def __init__(self, limit: int = 10_000, *, kept: Container[int] = ()) -> None:
        self._by_id: dict[int, Producer] = {}
        self._limit = limit
        self._quota = ProducerQuota(limit)
        self._refused: dict[int, _Refused] = {}
        self._kept = kept

    def __len__(self) -> int:
        return len(self._by_id)

    def __iter__(self) -> Iterator[Producer]:
        return iter(self._by_id.values())

    def share(self, quota: ProducerQuota) -> None:
        """Count for a quota that other partitions have a part in."""
        self._quota.used -= len(self._by_id)
        quota.used += len(self._by_id)
        self._quota = quota

    def release(self) -> None:
        """The partition is gone: it counts no more."""
        self.share(ProducerQuota(self._limit))

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
            self._add(Producer(header.producer_id, header.producer_epoch, now_ms, header.base_sequence))

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
        producer.remember(
            RememberedBatch(
                header.base_sequence,
                header.last_sequence,
                base_offset,
                base_offset + header.last_offset_delta,
                header.max_timestamp,
            )
        )

    def note_marker(self, header: BatchHeader, coordinator_epoch: int, now_ms: int) -> None:
        """Remember a marker that was written: the producer goes on under its epoch, with sequence 0 if that is
        new here.
        """
        producer = self._seen(header.producer_id, header.producer_epoch, now_ms)
        producer.coordinator_epoch = coordinator_epoch
        if not producer.batches:
            producer.awaited_sequence = 0

    def _seen(self, producer_id: int, epoch: int, now_ms: int) -> Producer:
        producer = self._by_id.pop(producer_id, None)
        if producer is None:
            return self._add(Producer(producer_id, epoch, now_ms))
        if producer.epoch != epoch:
            producer = Producer(producer_id, epoch, now_ms, coordinator_epoch=producer.coordinator_epoch)
        # Re-inserted at the end, so that the first of the dictionary is the one longest unseen.
        self._by_id[producer_id] = producer
        producer.seen_ms = now_ms
        return producer

    def _add(self, producer: Producer) -> Producer:
        self._by_id[producer.producer_id] = producer
        self._quota.used += 1
        count = len(self._by_id)
        if count > self._limit or (count > _KEPT_MIN and self._quota.is_exceeded):
            self._forget_longest_unseen(count)
        return producer

    def _forget_longest_unseen(self, count: int) -> None:
        """One of those that may be forgotten, but not the last."""
        for _ in range(count - 1):
            producer_id = next(iter(self._by_id))
            producer = self._by_id.pop(producer_id)
            if producer_id not in self._kept:
                self._quota.used -= 1
                return
            self._by_id[producer_id] = producer

    def restore(self, producer: Producer) -> None:
        if producer.producer_id not in self._by_id:
            self._quota.used += 1
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
        self._quota.used -= len(stale)
        return len(stale)
