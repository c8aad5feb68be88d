"""What a flow has noted about its batches, held against what is found when they are derived again.

Progress records say how many records each batch has read, how many of them were late or dead, and with which watermark
it began. Each of these is found anew, from the records; what differs is named with its first batch.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from headrace.flow.batch_index import BatchNote

__all__ = ["Books", "Tally"]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(slots=True)
class Tally:
    """What was found of one batch, over all of its inputs."""

    records: int = 0
    dead: int = 0
    late: int = 0


@dataclass(slots=True)
class _Mismatch:
    first: str = ""
    batches: int = 0

    def add(self, sentence: str) -> None:
        self.first = self.first or sentence
        self.batches += 1

    def __str__(self) -> str:
        more = self.batches - 1
        return self.first + (f"; so it is with {more:,} more batches" if more else "")


@dataclass(slots=True)
class Books:
    is_compacted: bool = True
    """Whether compaction may have removed input records since a batch read them."""
    records: int = 0
    late: int = 0
    dead: int = 0
    rows: int = 0
    bytes: int = 0
    short: int | None = None
    """The last batch of which there are fewer records now than it has read: some were compacted away."""
    _kinds: dict[str, _Mismatch] = field(default_factory=dict)
    _more: list[str] = field(default_factory=list)

    def compare(
        self, notes: Iterable[BatchNote], tallies: Mapping[int, Tally], watermarks: Mapping[int, int | None]
    ) -> None:
        """Of batches that are derived whole. ``watermarks`` are those that follow from the events before each."""
        for note in notes:
            tally = tallies.get(note.number, Tally())
            lacks = tally.records < note.rows_in
            if lacks and self.is_compacted:
                self.short = note.number
            batch = f"batch {note.number}"
            if tally.records > note.rows_in or (lacks and not self.is_compacted):
                self._differs(
                    "records", f"{batch} has read {note.rows_in} records, and there are {tally.records}"
                )
            if tally.dead != note.dead:
                told = f"{batch} had {note.dead} dead letters, and {tally.dead} records do not fit"
                self._differs("dead", f"{told}; was flow.future_ms changed?")
            if tally.late != note.late:
                told = (
                    f"{batch} had {note.late} late events, and by the watermark that follows from the events"
                )
                self._differs("late", f"{told} it is {tally.late}")
            if watermarks[note.number] != note.watermark_us:
                told = f"{batch} began with the watermark {_time(note.watermark_us)}"
                self._differs(
                    "watermark", f"{told}, and {_time(watermarks[note.number])} follows from the events"
                )

    def count(self, tallies: Iterable[Tally]) -> None:
        for tally in tallies:
            self.records += tally.records
            self.late += tally.late
            self.dead += tally.dead

    def add(self, mistake: str) -> None:
        self._more.append(mistake)

    @property
    def mistakes(self) -> tuple[str, ...]:
        return (*map(str, self._kinds.values()), *self._more)

    def _differs(self, kind: str, sentence: str) -> None:
        self._kinds.setdefault(kind, _Mismatch()).add(sentence)


def _time(at_us: int | None) -> str:
    """In ISO 8601; a fault may lead to any number."""
    if at_us is None:
        return "none"
    try:
        return (_EPOCH + timedelta(microseconds=at_us)).isoformat()
    except OverflowError:
        return f"{at_us} µs"
