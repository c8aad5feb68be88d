"""The idempotent producers of a partition: detects repeated batches, and refuses gaps.

A producer numbers its records per partition. The partition remembers the last five batches of each producer, because a
client may have five requests in flight. A batch that equals one of them is not written again. The response then
contains the offset of the first write.

The number of producers is limited per partition, and by a ``ProducerQuota`` for all partitions together. When a limit
is reached, a new producer replaces the one that the partition has not seen for longest. If the replaced producer writes
again, it counts as new.

The marker that ends a transaction also contains the epoch with which the producer continues. If that is a new epoch,
late batches of the older epoch are refused, so a record of one transaction never becomes part of the next. A producer
with an open transaction is never forgotten.
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
# Each partition may remember at least this many producers, even if the shared quota is exceeded.
_PRODUCERS_MIN = 5
# Equals the time for which clients retry by default. Afterwards, a client that gave up the refused batch and continues
# with a later batch gets a sequence error.
_REFUSED_MS = 120_000


class OutOfOrderSequence(StorageError):
    code = "HR-LOG-SEQUENCE"

    def __init__(self, producer_id: int, found: int, expected: int) -> None:
        super().__init__(
            f"producer {producer_id} sent sequence {found}, but the next sequence is {expected}",
            hint="an earlier batch did not arrive; the producer must continue with a new id or epoch",
        )


class StaleProducerEpoch(StorageError):
    code = "HR-LOG-PRODUCER-EPOCH"

    def __init__(self, producer_id: int, found: int, current: int) -> None:
        super().__init__(f"producer {producer_id} has epoch {found}, but the current epoch is {current}")


# gc=False: there may be many instances of both classes, and they contain no reference cycles.
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
    """The sequence with which a producer without batches must begin; ``None`` for any. It is set when the write of the
    producer's first batch fails (that batch's sequence), and by a marker (0).
    """
    coordinator_epoch: int = -1
    """The epoch of the coordinator that wrote the last marker; -1 for none."""
    batches: tuple[RememberedBatch, ...] = ()
    """The last batches; the newest is last."""

    def remember(self, batch: RememberedBatch) -> None:
        self.batches = (*self.batches[-(REMEMBERED_BATCHES - 1) :], batch)


class _Refused(NamedTuple):
    """The batch that a producer must resend, because its write failed."""

    epoch: int
    sequence: int
    at_ms: int


class ProducerQuota:
    """Limits how many producers all partitions together remember. Each partition may remember a few beyond it."""

    __slots__ = ("limit", "used")

    def __init__(self, limit: int = 75_000) -> None:
        self.limit = limit
        self.used = 0

    @property
    def is_exceeded(self) -> bool:
        return self.used > self.limit


class Producers:
    """All producers of one partition, at most ``limit``. Beyond the limit, the producer that was not seen for longest
    is forgotten, except for the producers in ``kept``.
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
        """Count the producers in a quota that all partitions share."""
        self._quota.used -= len(self._by_id)
        quota.used += len(self._by_id)
        self._quota = quota

    def release(self) -> None:
        """Remove the producers from the shared quota, because the partition was deleted."""
        self.share(ProducerQuota(self._limit))

    def find(self, producer_id: int) -> Producer | None:
        return self._by_id.get(producer_id)

    def check(self, header: BatchHeader, *, must_start_at_zero: bool = False) -> RememberedBatch | None:
        """Return the earlier copy if the batch is a repetition; else ``None``. Raises if the batch does not follow the
        producer's last batch.

        With ``must_start_at_zero`` an unknown producer must begin with sequence 0.
        """
        producer = self._by_id.get(header.producer_id)
        if producer is None:
            if must_start_at_zero and header.base_sequence != 0:
                raise OutOfOrderSequence(header.producer_id, header.base_sequence, 0)
            # Retention may have deleted all batches of an unknown producer, so it may begin with any sequence.
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

    def await_resend(self, header: BatchHeader, now_ms: int) -> None:
        """Record that the write of this batch failed. Later batches of the producer must wait until it is resent, even
        if the producer is unknown.
        """
        self._refused.pop(header.producer_id, None)
        self._refused[header.producer_id] = _Refused(header.producer_epoch, header.base_sequence, now_ms)
        if len(self._refused) > self._limit:
            del self._refused[next(iter(self._refused))]
        if header.producer_id not in self._by_id:
            self._add(Producer(header.producer_id, header.producer_epoch, now_ms, header.base_sequence))

    def follows_refused_batch(self, header: BatchHeader, now_ms: int) -> bool:
        """Whether this batch is out of order only because the write of an earlier batch failed.

        After a sequence error, some clients begin a new epoch and resend every batch that has no response. Batches that
        were already written would then exist twice. If the response is a failed write instead, clients resend both
        batches in order.
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
        producer = self._mark_seen(header.producer_id, header.producer_epoch, now_ms)
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
        """Remember a marker that was written. The producer continues with the marker's epoch; if that epoch is new, it
        continues with sequence 0.
        """
        producer = self._mark_seen(header.producer_id, header.producer_epoch, now_ms)
        producer.coordinator_epoch = coordinator_epoch
        if not producer.batches:
            producer.awaited_sequence = 0

    def _mark_seen(self, producer_id: int, epoch: int, now_ms: int) -> Producer:
        producer = self._by_id.pop(producer_id, None)
        if producer is None:
            return self._add(Producer(producer_id, epoch, now_ms))
        if producer.epoch != epoch:
            producer = Producer(producer_id, epoch, now_ms, coordinator_epoch=producer.coordinator_epoch)
        # Move the producer to the end: the first entry of the dictionary is the one not seen for longest.
        self._by_id[producer_id] = producer
        producer.seen_ms = now_ms
        return producer

    def _add(self, producer: Producer) -> Producer:
        self._by_id[producer.producer_id] = producer
        self._quota.used += 1
        count = len(self._by_id)
        if count > self._limit or (count > _PRODUCERS_MIN and self._quota.is_exceeded):
            self._forget_longest_unseen(count)
        return producer

    def _forget_longest_unseen(self, count: int) -> None:
        """Forget the producer that was not seen for longest, but never the newest one or one in ``kept``."""
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
        """Forget the producers that were last seen before ``seen_before_ms``; returns their number."""
        stale = [
            p.producer_id
            for p in self._by_id.values()
            if p.seen_ms < seen_before_ms and p.producer_id not in self._kept
        ]
        for producer_id in stale:
            del self._by_id[producer_id]
        self._quota.used -= len(stale)
        return len(stale)
