"""How far a subscriber, or what is remembered for all of them, has come in the log.

Places of one epoch (``headrace.serve.subscriptions.epoch``) are compared by the offset that each partition has come to.
Where a flow writes in batches, its places are the ends of batches, and so one of two is always the later one; elsewhere
neither may be.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from headrace.views.position import NO_BATCH, Position

__all__ = ["Place"]


@dataclass(frozen=True, slots=True)
class Place:
    offsets: Mapping[int, int]
    """Per partition, what comes next."""
    batch: int = NO_BATCH
    progress_offset: int = 0
    by_batch: bool = False
    """Whether it is the end of a batch; one without rows moves nothing else."""

    @classmethod
    def of(cls, position: Position, partitions: int, by_batch: bool) -> Place:
        offsets = {number: position.offsets.get(number, 0) for number in range(partitions)}
        return cls(offsets, position.batch, position.progress_offset, by_batch)

    def covers(self, other: Place) -> bool:
        """Whether it is as far."""
        if self.by_batch:
            return self.batch >= other.batch
        mine = self.offsets
        return all(mine.get(one, 0) >= at for one, at in other.offsets.items())

    def begins_before(self, other: Place) -> bool:
        """Whether reading on from here is to read all that there is from the other on, and perhaps more. Either may be
        made up: only what is read by counts.
        """
        if self.by_batch:
            return self.progress_offset <= other.progress_offset
        return all(at <= other.offsets.get(one, 0) for one, at in self.offsets.items())

    def has(self, partition: int, offset: int) -> bool:
        """Whether the record is before it."""
        return offset < self.offsets.get(partition, 0)

    def least(self, other: Place) -> Place:
        """What is before both."""
        if self.by_batch:
            return other if self.covers(other) else self
        offsets = {one: min(at, other.offsets.get(one, 0)) for one, at in self.offsets.items()}
        return replace(self, offsets=offsets, batch=min(self.batch, other.batch))

    def most(self, other: Place) -> Place:
        if self.by_batch:
            return self if self.covers(other) else other
        offsets = {one: max(at, other.offsets.get(one, 0)) for one, at in self.offsets.items()}
        return replace(self, offsets=offsets, batch=max(self.batch, other.batch))

    def told(self, generation: int) -> dict[str, Any]:
        of_flow = {"generation": generation, "batch": self.batch} if generation else {}
        return {**of_flow, "offsets": {str(one): at for one, at in sorted(self.offsets.items())}}
