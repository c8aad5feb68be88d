"""Positions in the log, steps between them, and the epoch in which positions can be compared.

A position is the next offset of each partition. If a flow writes the topic in batches, every position is the end of a
batch, so one of two positions is always later. In other topics, a position can be ahead of another in one partition and
behind it in a second partition.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import msgspec

from headrace.serve.query.position_token import PositionDocument, position_document
from headrace.stores.position import NO_BATCH, Position, ViewState
from headrace.stores.rows import Row

__all__ = ["Change", "Epoch", "LogPosition", "Step"]


@dataclass(frozen=True, slots=True)
class LogPosition:
    offsets: Mapping[int, int]
    """The next offset to read, by partition."""
    batch: int = NO_BATCH
    progress_offset: int = 0
    by_batch: bool = False
    """True if the position is the end of a batch. An empty batch changes only the batch number."""

    @classmethod
    def of(cls, position: Position, partitions: int, by_batch: bool) -> LogPosition:
        offsets = {number: position.offsets.get(number, 0) for number in range(partitions)}
        return cls(offsets, position.batch, position.progress_offset, by_batch)

    def covers(self, other: LogPosition) -> bool:
        """Return whether this position is equal to ``other`` or later."""
        if self.by_batch:
            return self.batch >= other.batch
        own_offsets = self.offsets
        return all(own_offsets.get(partition, 0) >= offset for partition, offset in other.offsets.items())

    def begins_before(self, other: LogPosition) -> bool:
        """Return whether reading from this position includes everything after ``other``.

        Either position can be forged, so this compares only the fields that reading uses.
        """
        if self.by_batch:
            return self.progress_offset <= other.progress_offset
        return all(offset <= other.offsets.get(partition, 0) for partition, offset in self.offsets.items())

    def is_after(self, partition: int, offset: int) -> bool:
        """Return whether this position is after the record at ``offset``."""
        return offset < self.offsets.get(partition, 0)

    def minimum(self, other: LogPosition) -> LogPosition:
        """The latest position that both positions cover."""
        if self.by_batch:
            return other if self.covers(other) else self
        offsets = {
            number: min(offset, other.offsets.get(number, 0)) for number, offset in self.offsets.items()
        }
        return replace(self, offsets=offsets, batch=min(self.batch, other.batch))

    def maximum(self, other: LogPosition) -> LogPosition:
        """The earliest position that covers both positions."""
        if self.by_batch:
            return self if self.covers(other) else other
        offsets = {
            number: max(offset, other.offsets.get(number, 0)) for number, offset in self.offsets.items()
        }
        return replace(self, offsets=offsets, batch=max(self.batch, other.batch))

    def to_json(self, generation: int) -> dict[str, Any]:
        batch_fields = {"generation": generation, "batch": self.batch} if generation else {}
        return {
            **batch_fields,
            "offsets": {str(number): offset for number, offset in sorted(self.offsets.items())},
        }


_OVERHEAD_BYTES = 250
"""Estimated memory of a change in addition to its key and row."""


class Change(NamedTuple):
    key: bytes
    """The key columns as a JSON object, as sent in messages."""
    key_values: Row
    row: bytes | None
    """The row as JSON, as sent in messages; None if the row was deleted."""
    values: Row | None
    partition: int
    offset: int


@dataclass(frozen=True, slots=True)
class Step:
    """The changes between two positions."""

    before: LogPosition
    after: LogPosition
    changes: list[Change]
    """The changes in the order of the log. A key can occur more than once."""

    @property
    def size_bytes(self) -> int:
        return (
            sum(len(change.key) + len(change.row or b"") * 2 + _OVERHEAD_BYTES for change in self.changes)
            + 2 * _OVERHEAD_BYTES
        )


@dataclass(frozen=True, slots=True)
class Epoch:
    """Identifies what a store was built from: topic, generation, partitions and columns. Compare only positions of the
    same epoch.
    """

    topic: str
    topic_id: str
    generation: int
    progress_id: str
    partitions: int
    schema_text: str
    by_batch: bool
    """True if a flow writes the topic in batches, so that every position is the end of a batch."""
    searched: tuple[str, ...] = ()
    """The columns of the full-text index."""

    @classmethod
    def of(cls, state: ViewState, partitions: int, by_batch: bool) -> Epoch:
        position = state.position
        return cls(
            *(position.topic, position.topic_id, position.generation, position.progress_id),
            *(partitions, state.schema.to_json(), by_batch, state.searched),
        )

    def has(self, state: ViewState) -> bool:
        """Return whether the store's state belongs to this epoch."""
        return Epoch.of(state, self.partitions, self.by_batch) == self

    def log_position(self, position: Position) -> LogPosition:
        return LogPosition.of(position, self.partitions, self.by_batch)

    @property
    def digest(self) -> bytes:
        identity = [
            *(self.topic, self.topic_id, self.generation, self.progress_id),
            *(self.partitions, self.schema_text, self.by_batch, *self.searched),
        ]
        return hashlib.sha256(msgspec.msgpack.encode(identity)).digest()[:12]

    def position(self, log_position: LogPosition) -> Position:
        return Position(
            self.topic,
            self.topic_id,
            dict(log_position.offsets),
            generation=self.generation,
            batch=log_position.batch,
            progress_id=self.progress_id,
            progress_offset=log_position.progress_offset,
        )

    def document(self, log_position: LogPosition) -> PositionDocument:
        return position_document(self.position(log_position), stored=False)
