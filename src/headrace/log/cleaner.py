"""The compaction of one batch: the batch is retained, reduced, emptied or removed.

- Below the end of the key map, only the newest record of each key is retained. A tombstone is retained until it
  expires.
- When the batch of a tombstone is first compacted, it gets a *delete horizon*: the current time plus
  ``delete.retention.ms``. A compaction at or after that time removes the tombstone. So every reader with less lag than
  ``delete.retention.ms`` sees it.
- Records of aborted transactions are removed. Markers of aborted transactions, and of committed transactions without
  remaining records, also get a delete horizon, and are removed at or after that time.
- A batch without remaining records is retained as an empty batch if it has the last sequence of a known producer. A
  marker is retained if no other batch has the current epoch of its producer.

Batches must be passed in offset order from the first batch of the log, because the decision about a marker depends on
the batches before it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from headrace.log.key_map import KeyMap
from headrace.log.transactions import TransactionScan
from headrace.records import (
    BatchHeader,
    RecordLimits,
    empty_batch,
    open_batch,
    read_header,
    remove_records,
)

__all__ = ["CleanedBatch", "Cleaner", "KnownProducers"]

Buffer = bytes | bytearray | memoryview


class CleanedBatch(NamedTuple):
    """The remaining batch. With ``may_stretch`` it may be extended over the removed offsets after it."""

    data: Buffer
    header: BatchHeader
    may_stretch: bool


class KnownProducers(NamedTuple):
    """The batches from which the state of the producers can be rebuilt. Compaction must retain them."""

    last_batches: Collection[tuple[int, int]] = ()
    """(producer id, last offset) of each batch with the last sequence of a producer."""
    epochs: Mapping[int, int] = {}
    """The current epochs of producers that wrote no batch in this epoch. Only a marker contains the epoch."""


@dataclass(slots=True)
class Cleaner:
    keys: KeyMap
    map_end: int
    """The offset at which the key map ends. Records at or above it remain unchanged."""
    now_ms: int
    delete_retention_ms: int
    limits: RecordLimits
    transactions: TransactionScan
    producers: KnownProducers = field(default_factory=KnownProducers)
    removed_records: int = 0
    horizons_set: int = 0
    tombstones_removed_below: int = 0
    next_horizon_ms: int = -1
    markers_removed: list[int] = field(default_factory=list)

    def clean(self, batch: Buffer) -> CleanedBatch | None:
        """Compact one batch; returns the remaining batch, or ``None`` if it is removed."""
        header = read_header(batch)
        if header.base_offset >= self.map_end:
            return self._unchanged(batch, header)
        if header.is_control:
            return self._clean_marker(batch, header)
        return self._clean_data(batch)

    def _clean_data(self, batch: Buffer) -> CleanedBatch | None:
        stored = open_batch(batch, self.limits)
        header = stored.header
        if self.transactions.is_aborted(header):
            self.removed_records += header.count
            return self._empty_batch(header)
        expired = header.has_delete_horizon and header.base_timestamp <= self.now_ms
        kept, last_kept_tombstone, last_dropped_tombstone = self.keys.sift(
            stored.records, header.base_offset, drop_tombstones=expired
        )
        remaining = sum(kept)
        self.removed_records += header.count - remaining
        if last_dropped_tombstone >= self.tombstones_removed_below:
            self.tombstones_removed_below = last_dropped_tombstone + 1
        if not remaining:
            return self._empty_batch(header)
        horizon = self._horizon(header) if last_kept_tombstone >= 0 else None
        if remaining == header.count and horizon is None:
            return self._unchanged(batch, header)
        return self._changed(remove_records(stored, kept, horizon))

    def _clean_marker(self, batch: Buffer, header: BatchHeader) -> CleanedBatch | None:
        if not self.transactions.is_unneeded_marker(batch, header):
            return self._unchanged(batch, header)
        if self.producers.epochs.get(header.producer_id) == header.producer_epoch:
            return self._unchanged(batch, header)
        if header.has_delete_horizon and header.base_timestamp <= self.now_ms:
            self.removed_records += header.count
            self.markers_removed.append(header.base_offset)
            return None
        horizon = self._horizon(header)
        if horizon is None:
            return self._unchanged(batch, header)
        return self._changed(remove_records(open_batch(batch, self.limits), b"\x01" * header.count, horizon))

    def _horizon(self, header: BatchHeader) -> int | None:
        """Return the delete horizon to add to the batch; ``None`` if it already has one. Also updates
        ``next_horizon_ms``.
        """
        has_horizon = header.has_delete_horizon
        horizon = header.base_timestamp if has_horizon else self.now_ms + self.delete_retention_ms
        if self.next_horizon_ms < 0 or horizon < self.next_horizon_ms:
            self.next_horizon_ms = horizon
        self.horizons_set += not has_horizon
        return None if has_horizon else horizon

    def _unchanged(self, batch: Buffer, header: BatchHeader) -> CleanedBatch:
        return CleanedBatch(batch, header, self._may_stretch(header))

    def _changed(self, batch: bytearray) -> CleanedBatch:
        header = read_header(batch)
        return CleanedBatch(batch, header, self._may_stretch(header))

    def _empty_batch(self, header: BatchHeader) -> CleanedBatch | None:
        if (header.producer_id, header.last_offset) not in self.producers.last_batches:
            return None
        return self._changed(empty_batch(header))

    def _may_stretch(self, header: BatchHeader) -> bool:
        """Whether the batch may be extended over the offsets after it. Batches of transactions and a producer's last
        batch must retain their exact last offset.
        """
        return not (
            header.is_transactional
            or header.is_control
            or (header.producer_id, header.last_offset) in self.producers.last_batches
        )
