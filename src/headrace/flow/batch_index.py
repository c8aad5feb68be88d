"""The batches of a generation, by what they have read: which batch a record belongs to.

Batches follow each other without a gap, so per partition the ends of what each has read never fall, and the batch of a
record is the first one that ends behind it. Kept are numbers only, since there may be a hundred thousand batches.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from headrace.model.progress import Batch

__all__ = ["BatchIndex", "BatchNote", "Lookup"]


@dataclass(frozen=True, slots=True)
class BatchNote:
    """What a progress record says about one batch, as far as it is checked."""

    number: int
    watermark_us: int | None
    rows_in: int
    late: int
    dead: int


@dataclass(frozen=True, slots=True)
class Lookup:
    """For the records of one topic; small enough to be sent to where they are decoded."""

    numbers: Sequence[int]
    ends: Mapping[int, Sequence[int]]
    """By partition, one end for each batch."""

    def batches_of(self, partitions: Sequence[int], offsets: Sequence[int]) -> list[int]:
        """The number of the batch of each record. Raises ``IndexError`` for a record that no batch has read."""
        # Neighbours are mostly of one batch.
        found: list[int] = []
        known, low, high, number = -1, 0, 0, 0
        for partition, offset in zip(partitions, offsets, strict=True):
            if partition != known or not low <= offset < high:
                ends = self.ends[partition]
                at = bisect_right(ends, offset)
                known, number = partition, self.numbers[at]
                low, high = (ends[at - 1] if at else 0), ends[at]
            found.append(number)
        return found


@dataclass(slots=True)
class BatchIndex:
    notes: list[BatchNote] = field(default_factory=list)
    _numbers: array[int] = field(default_factory=lambda: array("q"))
    _ends: dict[str, dict[int, array[int]]] = field(default_factory=dict)

    @classmethod
    def of(cls, batches: Iterable[Batch]) -> BatchIndex:
        index = cls()
        for batch in batches:
            index._add(batch)
        return index

    def _add(self, batch: Batch) -> None:
        done = len(self._numbers)
        self._numbers.append(batch.batch)
        self.notes.append(BatchNote(batch.batch, batch.watermark_us, batch.rows_in, batch.late, batch.dead))
        for log, ranges in batch.inputs.items():
            for number, (_, end) in ranges.items():
                # No batch before this one has read a partition that is new.
                self._ends.setdefault(log, {}).setdefault(int(number), array("q", bytes(8 * done))).append(
                    end
                )

    def lookup(self, log: str) -> Lookup:
        return Lookup(self._numbers, self._ends.get(log, {}))

    def between(self, first: int, last: int) -> list[BatchNote]:
        """Those with these numbers and the ones in between, in order."""
        return self.notes[bisect_left(self._numbers, first) : bisect_right(self._numbers, last)]
