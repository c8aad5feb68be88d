"""What compaction makes of one batch: it stays as it is, stays in part, stays as an empty shell, or goes.

- Below the end of the map, only the newest record of each key stays; a deletion stays until it expires.
- A deletion's batch gets a *delete horizon* when it is first compacted: now, plus ``delete.retention.ms``. What is
  compacted at or behind that time drops it. So every reader that is not further behind has seen it.
- Records of aborted transactions go. Their marker, and the marker of a committed transaction of which no record is
  left, get a delete horizon in turn and go once it has passed.
- A batch without records stays as a shell if it holds the last sequence of a producer that may come back; a marker
  stays if it holds the producer's epoch.

Batches must come in the order of their offsets, from the first that is there: a marker is judged by what came before.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from headrace.log.key_map import KeyMap
from headrace.log.transaction_walk import TransactionWalk
from headrace.records import (
    BatchHeader,
    RecordLimits,
    empty_batch,
    open_batch,
    read_header,
    thin_batch,
)

__all__ = ["Cleaned", "Cleaner", "KnownProducers"]

Buffer = bytes | bytearray | memoryview


class Cleaned(NamedTuple):
    """What is left of a batch; it ``may_stretch`` over offsets behind it that nothing is left of."""

    data: Buffer
    header: BatchHeader
    may_stretch: bool


class KnownProducers(NamedTuple):
    """What the log must go on telling of producers, should their state be lost."""

    last_batches: Collection[tuple[int, int]] = ()
    """(producer id, last offset) of the batch with the producer's last sequence."""
    epochs: Mapping[int, int] = {}
    """The epoch of a producer that has no batch under it: its marker tells."""


@dataclass(slots=True)
class Cleaner:
    keys: KeyMap
    map_end: int
    """Records at or above it are not in the map and stay as they are."""
    now_ms: int
    delete_retention_ms: int
    limits: RecordLimits
    transactions: TransactionWalk
    producers: KnownProducers = field(default_factory=KnownProducers)
    removed_records: int = 0
    horizons_set: int = 0
    tombstones_removed_below: int = 0
    next_horizon_ms: int = -1
    markers_removed: list[int] = field(default_factory=list)

    def clean(self, batch: Buffer) -> Cleaned | None:
        """What stays of the batch; ``None`` if nothing does."""
        header = read_header(batch)
        if header.base_offset >= self.map_end:
            return self._as_is(batch, header)
        if header.is_control:
            return self._clean_marker(batch, header)
        return self._clean_data(batch)

    def _clean_data(self, batch: Buffer) -> Cleaned | None:
        stored = open_batch(batch, self.limits)
        header = stored.header
        if self.transactions.is_aborted(header):
            self.removed_records += header.count
            return self._shell(header)
        expired = header.has_delete_horizon and header.base_timestamp <= self.now_ms
        kept, deletion_kept, deletion_dropped = self.keys.sift(
            stored.records, header.base_offset, drop_deletions=expired
        )
        left = sum(kept)
        self.removed_records += header.count - left
        if deletion_dropped >= self.tombstones_removed_below:
            self.tombstones_removed_below = deletion_dropped + 1
        if not left:
            return self._shell(header)
        horizon = self._horizon(header) if deletion_kept >= 0 else None
        if left == header.count and horizon is None:
            return self._as_is(batch, header)
        return self._made(thin_batch(stored, kept, horizon))

    def _clean_marker(self, batch: Buffer, header: BatchHeader) -> Cleaned | None:
        if not self.transactions.pass_marker(batch, header):
            return self._as_is(batch, header)
        if self.producers.epochs.get(header.producer_id) == header.producer_epoch:
            return self._as_is(batch, header)
        if header.has_delete_horizon and header.base_timestamp <= self.now_ms:
            self.removed_records += header.count
            self.markers_removed.append(header.base_offset)
            return None
        horizon = self._horizon(header)
        if horizon is None:
            return self._as_is(batch, header)
        return self._made(thin_batch(open_batch(batch, self.limits), b"\x01" * header.count, horizon))

    def _horizon(self, header: BatchHeader) -> int | None:
        """The horizon that the batch needs and has not got; notes when the next one passes."""
        has = header.has_delete_horizon
        horizon = header.base_timestamp if has else self.now_ms + self.delete_retention_ms
        if self.next_horizon_ms < 0 or horizon < self.next_horizon_ms:
            self.next_horizon_ms = horizon
        self.horizons_set += not has
        return None if has else horizon

    def _as_is(self, batch: Buffer, header: BatchHeader) -> Cleaned:
        return Cleaned(batch, header, self._may_stretch(header))

    def _made(self, batch: bytearray) -> Cleaned:
        header = read_header(batch)
        return Cleaned(batch, header, self._may_stretch(header))

    def _shell(self, header: BatchHeader) -> Cleaned | None:
        if (header.producer_id, header.last_offset) not in self.producers.last_batches:
            return None
        return self._made(empty_batch(header))

    def _may_stretch(self, header: BatchHeader) -> bool:
        """Not a batch by which its producer is known, nor one that readers of transactions judge by its offsets."""
        return not (
            header.is_transactional
            or header.is_control
            or (header.producer_id, header.last_offset) in self.producers.last_batches
        )
