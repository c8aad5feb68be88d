"""Finding records by their time.

The index says which batch to look into; what the batch holds is known only once it is unpacked, and a small one may
unpack to much. So the search goes from batch to batch: ``batch_in`` and ``greatest_in`` read headers of one segment on
the event loop, and ``TimedBatch`` unpacks one batch in any thread while its segment is pinned. Every step begins at an
offset, so that the log may change between two of them. The headers of an archived segment are read in a thread, too,
and its batch is loaded there before it is unpacked.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

from headrace.errors import CorruptBatch
from headrace.log.partition import PartitionLog
from headrace.log.reader import LogReader, expect_true_length
from headrace.log.recovery import segment_headers
from headrace.log.segment import ReadableSegment
from headrace.records import BatchHeader, RecordError, RecordLimits, read_stored

__all__ = ["Greatest", "TimeSearch", "TimedBatch"]

_INLINE_RECORDS_MAX = 1_000
_INLINE_BYTES_MAX = 64 << 10
_HEADERS_AT_ONCE = 2_000

Place = tuple[int, int]
"""Offset and timestamp of a record."""


@dataclass(frozen=True, slots=True)
class TimedBatch:
    segment: ReadableSegment
    position: int
    header: BatchHeader
    data: bytes | None = None
    """Its bytes, where it is loaded; else they are read when it is unpacked."""

    @property
    def is_short(self) -> bool:
        """Whether unpacking it takes no longer than reading it."""
        header = self.header
        return not header.codec and header.count <= _INLINE_RECORDS_MAX and header.size <= _INLINE_BYTES_MAX

    def loaded(self) -> TimedBatch:
        """The batch with its bytes, so that unpacking it waits for nothing."""
        return replace(self, data=self._read())

    def first_from(self, timestamp_ms: int, start_offset: int, limits: RecordLimits) -> Place | None:
        """The first record at or after a time, from an offset on."""
        for offset, timestamp in self._records(limits):
            if timestamp >= timestamp_ms and offset >= start_offset:
                return offset, timestamp
        return None

    def latest(self, start_offset: int, limits: RecordLimits) -> Place | None:
        """The first of the records with the greatest timestamp, from an offset on."""
        places = (place for place in self._records(limits) if place[0] >= start_offset)
        return max(places, key=lambda place: (place[1], -place[0]), default=None)

    def _records(self, limits: RecordLimits) -> Iterator[Place]:
        data = self._read() if self.data is None else self.data
        try:
            yield from read_stored(data, limits)
        except RecordError as error:
            raise CorruptBatch(self.segment.path, self.position, error.message) from error

    def _read(self) -> bytes:
        expect_true_length(self.segment, self.position, self.header)
        return self.segment.file.pread(self.header.size, self.position)


class Greatest(NamedTuple):
    """The batch with the greatest timestamp so far, and where to go on; ``None`` at the end of the segment."""

    batch: TimedBatch | None
    next_offset: int | None


class TimeSearch:
    def __init__(self, log: PartitionLog, reader: LogReader) -> None:
        self._log = log
        self._reader = reader

    def segment_from(self, timestamp_ms: int, from_offset: int) -> ReadableSegment | None:
        """The first segment that has records from an offset on and reaches the time."""
        for segment in self._log.all_segments():
            if segment.end_offset > from_offset and segment.index.max_timestamp >= timestamp_ms:
                return segment
        return None

    def segment_at(self, base_offset: int) -> ReadableSegment | None:
        """The segment that begins at an offset."""
        segment = self._log.segment_at(base_offset)
        return segment if segment is not None and segment.base_offset == base_offset else None

    def batch_in(self, segment: ReadableSegment, timestamp_ms: int, from_offset: int) -> TimedBatch | None:
        """The segment's first batch from an offset on, below the high watermark, that may hold a record at or after the
        time.
        """
        log = self._log
        start, _ = self._reader.index_of(segment).floor_time(timestamp_ms)
        first = max(start, from_offset, log.start_offset)
        for position, header in segment_headers(segment, first, 0):
            if header.base_offset >= log.high_watermark:
                return None
            if header.max_timestamp >= timestamp_ms:
                return TimedBatch(segment, position, header)
        return None

    def segments_by_time(self) -> list[tuple[int, int]]:
        """Greatest timestamp and base offset of every segment with a timestamp, the greatest first."""
        found = [
            (segment.index.max_timestamp, segment.base_offset)
            for segment in self._log.all_segments()
            if segment.index.max_timestamp >= 0
        ]
        return sorted(found, key=lambda pair: (-pair[0], pair[1]))

    def batch_at_start(self, segment: ReadableSegment) -> TimedBatch | None:
        """The segment's batch in the midst of which the log starts. Its header also counts records below the start, so
        only unpacking it tells its greatest timestamp.
        """
        start = self._log.start_offset
        if segment.base_offset < start < segment.end_offset:
            for position, header in segment_headers(segment, start, 0):
                return TimedBatch(segment, position, header) if header.base_offset < start else None
        return None

    def greatest_in(self, segment: ReadableSegment, so_far: Greatest) -> Greatest:
        """Go on in a segment, over some headers, for the greatest timestamp below the high watermark, in batches that
        begin at the log's start or behind it.
        """
        log = self._log
        if so_far.next_offset is None:
            return so_far
        best = so_far.batch
        from_offset = max(so_far.next_offset, log.start_offset)
        for seen, (position, header) in enumerate(segment_headers(segment, from_offset, 0)):
            if header.base_offset >= log.high_watermark:
                break
            if seen >= _HEADERS_AT_ONCE:
                return Greatest(best, header.base_offset)
            if header.base_offset < log.start_offset or not header.count:
                continue
            if best is None or header.max_timestamp > best.header.max_timestamp:
                best = TimedBatch(segment, position, header)
        return Greatest(best, None)
