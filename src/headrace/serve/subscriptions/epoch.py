"""A stretch of a view's life in which positions can be compared: one topic, one generation of it, the same partitions
and the same columns, also of those that words are found in. What was told in one epoch cannot be gone on from in
another; it begins with a snapshot.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

import msgspec

from headrace.serve.position_json import position_json
from headrace.serve.subscriptions.place import Place
from headrace.views.position import Position, Standing

__all__ = ["Epoch"]


@dataclass(frozen=True, slots=True)
class Epoch:
    topic: str
    topic_id: str
    generation: int
    progress_id: str
    partitions: int
    shape_text: str
    by_batch: bool
    """Whether a flow writes it batch by batch, so that places are ends of batches."""
    searched: tuple[str, ...] = ()
    """Of a full-text index: in which columns words are found."""

    @classmethod
    def of(cls, standing: Standing, partitions: int, by_batch: bool) -> Epoch:
        position = standing.position
        return cls(
            *(position.topic, position.topic_id, position.generation, position.progress_id),
            *(partitions, standing.shape.tell(), by_batch, standing.searched),
        )

    def has(self, standing: Standing) -> bool:
        """Whether what a store has now is of it."""
        return Epoch.of(standing, self.partitions, self.by_batch) == self

    def place(self, position: Position) -> Place:
        return Place.of(position, self.partitions, self.by_batch)

    @property
    def digest(self) -> bytes:
        told = [
            *(self.topic, self.topic_id, self.generation, self.progress_id),
            *(self.partitions, self.shape_text, self.by_batch, *self.searched),
        ]
        return hashlib.sha256(msgspec.msgpack.encode(told)).digest()[:12]

    def position(self, place: Place) -> Position:
        return Position(
            self.topic,
            self.topic_id,
            dict(place.offsets),
            generation=self.generation,
            batch=place.batch,
            progress_id=self.progress_id,
            progress_offset=place.progress_offset,
        )

    def position_json(self, place: Place) -> dict[str, Any]:
        """No store is asked, so there is no time at which one had it."""
        told = position_json(self.position(place))
        del told["stored"]
        return told
