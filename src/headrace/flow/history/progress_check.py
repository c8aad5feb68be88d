"""Compares a flow's progress records with values that ``verify`` computes again from the input records.

A progress record has the number of records that its batch read, the numbers of late and dead records, and the
watermark. ``verify`` computes each of these again. It reports the first batch that differs, and how many others differ.

``BatchIndex`` finds the batch that read a record. Batches have no gaps, so in each partition the end offsets of the
batches never decrease. The batch of a record is the first batch that ends after the record. The index stores only
numbers, because a flow can have a hundred thousand batches.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from headrace.model.progress import Batch

__all__ = ["BatchIndex", "BatchNote", "Lookup", "ProgressCheck", "Tally"]


@dataclass(frozen=True, slots=True)
class BatchNote:
    """The checked fields of one progress record."""

    number: int
    watermark_us: int | None
    rows_in: int
    late: int
    dead: int


@dataclass(frozen=True, slots=True)
class Lookup:
    """Finds the batches that read the records of one topic. Small enough to send to Spark's workers."""

    numbers: Sequence[int]
    ends: Mapping[int, Sequence[int]]
    """For each partition, the end offset of each batch."""

    def batches_of(self, partitions: Sequence[int], offsets: Sequence[int]) -> list[int]:
        """Return the batch number of each record. Raises ``IndexError`` if no batch has read the record."""
        # Consecutive records are usually in the same batch, so the last result is tried first.
        batch_numbers: list[int] = []
        last_partition, low, high, number = -1, 0, 0, 0
        for partition, offset in zip(partitions, offsets, strict=True):
            if partition != last_partition or not low <= offset < high:
                ends = self.ends[partition]
                index = bisect_right(ends, offset)
                last_partition, number = partition, self.numbers[index]
                low, high = (ends[index - 1] if index else 0), ends[index]
            batch_numbers.append(number)
        return batch_numbers


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
                # A new partition gets end offset 0 for all earlier batches: they did not read it.
                self._ends.setdefault(log, {}).setdefault(int(number), array("q", bytes(8 * done))).append(
                    end
                )

    def lookup(self, log: str) -> Lookup:
        return Lookup(self._numbers, self._ends.get(log, {}))

    def between(self, first: int, last: int) -> list[BatchNote]:
        return self.notes[bisect_left(self._numbers, first) : bisect_right(self._numbers, last)]


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(slots=True)
class Tally:
    """Counts of the records of one batch, over all inputs."""

    records: int = 0
    dead: int = 0
    late: int = 0


@dataclass(slots=True)
class _Mismatch:
    first: str = ""
    batches: int = 0

    def add(self, message: str) -> None:
        self.first = self.first or message
        self.batches += 1

    def __str__(self) -> str:
        other_batches = self.batches - 1
        return self.first + (f"; {other_batches:,} more batches differ as well" if other_batches else "")


@dataclass(slots=True)
class ProgressCheck:
    is_compacted: bool = True
    """Whether compaction might have removed input records after a batch read them."""
    records: int = 0
    late: int = 0
    dead: int = 0
    rows: int = 0
    bytes: int = 0
    last_incomplete_batch: int | None = None
    """The last batch that read more records than exist now, because compaction has removed some since."""
    _mismatches: dict[str, _Mismatch] = field(default_factory=dict)
    _other_mistakes: list[str] = field(default_factory=list)

    def compare(
        self,
        notes: Iterable[BatchNote],
        tallies: Mapping[int, Tally],
        watermarks: Mapping[int, int | None],
        *,
        exact: bool = True,
    ) -> None:
        """Compare batches whose input is complete. ``watermarks`` has, for each batch, the watermark computed from the
        events before it; unless ``exact``, the recorded watermark may be earlier.
        """
        for note in notes:
            tally = tallies.get(note.number, Tally())
            lacks_records = tally.records < note.rows_in
            if lacks_records and self.is_compacted:
                self.last_incomplete_batch = note.number
            batch = f"batch {note.number}"
            if tally.records > note.rows_in or (lacks_records and not self.is_compacted):
                self._differs(
                    "records",
                    f"{batch} recorded {note.rows_in} input records, but the log has {tally.records}",
                )
            if tally.dead != note.dead:
                text = f"{batch} recorded {note.dead} dead letters, but {tally.dead} records do not fit"
                self._differs("dead", f"{text}; was flow.future_ms changed?")
            if tally.late != note.late:
                text = f"{batch} recorded {note.late} late events, but {tally.late} events are too far behind"
                self._differs("late", f"{text} the newest event of their partition")
            if not _is_valid(note.watermark_us, watermarks[note.number], exact=exact):
                text = f"{batch} recorded the watermark {_time(note.watermark_us)}"
                self._differs(
                    "watermark", f"{text}, but the events result in {_time(watermarks[note.number])}"
                )

    def count(self, tallies: Iterable[Tally]) -> None:
        for tally in tallies:
            self.records += tally.records
            self.late += tally.late
            self.dead += tally.dead

    def add(self, mistake: str) -> None:
        self._other_mistakes.append(mistake)

    @property
    def mistakes(self) -> tuple[str, ...]:
        return (*map(str, self._mismatches.values()), *self._other_mistakes)

    def _differs(self, kind: str, message: str) -> None:
        self._mismatches.setdefault(kind, _Mismatch()).add(message)


def _is_valid(recorded_us: int | None, computed_us: int | None, *, exact: bool) -> bool:
    if exact or recorded_us is None or computed_us is None:
        return recorded_us == computed_us or (not exact and recorded_us is None)
    return recorded_us <= computed_us


def _time(at_us: int | None) -> str:
    """Format the time as ISO 8601, or as a number if it is out of range: a damaged record can contain any number."""
    if at_us is None:
        return "none"
    try:
        return (_EPOCH + timedelta(microseconds=at_us)).isoformat()
    except OverflowError:
        return f"{at_us} µs"
