"""Searches for records by time.

The index identifies the batch to search, but the timestamps of its records are known only after decompression. A small
batch can decompress to many bytes, so the search proceeds batch by batch:

- ``batch_in`` and ``scan_segment`` read the headers of one segment: on the event loop, or in a thread if the segment is
  archived.
- ``TimedBatch`` decompresses one batch in any thread while its segment is pinned. For an archived segment, the batch
  is loaded first.

Every step starts from an offset, so the log may change between two steps.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

from headrace.errors import CorruptBatch
from headrace.log.partition import PartitionLog
from headrace.log.reader import LogReader, check_batch_length
from headrace.log.recovery import segment_headers
from headrace.log.segment import ReadableSegment
from headrace.records import BatchHeader, RecordError, RecordLimits, read_stored

__all__ = ["GreatestTimestampScan", "TimeSearch", "TimedBatch", "TimedOffset"]

_INLINE_RECORDS_MAX = 1_000
_INLINE_BYTES_MAX = 64 << 10
_HEADERS_AT_ONCE = 2_000

TimedOffset = tuple[int, int]
"""Offset and timestamp of a record."""


@dataclass(frozen=True, slots=True)
class TimedBatch:
    segment: ReadableSegment
    position: int
    header: BatchHeader
    data: bytes | None = None
    """The bytes of the batch, if they are loaded. Otherwise they are read before decompression."""

    @property
    def is_cheap_to_decode(self) -> bool:
        """Whether the batch is uncompressed and small enough to decode on the event loop."""
        header = self.header
        return not header.codec and header.count <= _INLINE_RECORDS_MAX and header.size <= _INLINE_BYTES_MAX

    def loaded(self) -> TimedBatch:
        """Return the batch with its bytes loaded, so that decompression needs no read."""
        return replace(self, data=self._read())

    def first_at_or_after(
        self, timestamp_ms: int, start_offset: int, limits: RecordLimits
    ) -> TimedOffset | None:
        """Return the first record at or after ``timestamp_ms`` with an offset of at least ``start_offset``."""
        for offset, timestamp in self._records(limits):
            if timestamp >= timestamp_ms and offset >= start_offset:
                return offset, timestamp
        return None

    def latest(self, start_offset: int, limits: RecordLimits) -> TimedOffset | None:
        """Return the record with the greatest timestamp from ``start_offset`` on; the first one, if several have it."""
        records = (record for record in self._records(limits) if record[0] >= start_offset)
        return max(records, key=lambda record: (record[1], -record[0]), default=None)

    def _records(self, limits: RecordLimits) -> Iterator[TimedOffset]:
        data = self._read() if self.data is None else self.data
        try:
            yield from read_stored(data, limits)
        except RecordError as error:
            raise CorruptBatch(self.segment.path, self.position, error.message) from error

    def _read(self) -> bytes:
        check_batch_length(self.segment, self.position, self.header)
        return self.segment.file.pread(self.header.size, self.position)


class GreatestTimestampScan(NamedTuple):
    """The state of a scan of one segment for the greatest timestamp."""

    batch: TimedBatch | None
    """The batch with the greatest timestamp so far."""
    next_offset: int | None
    """The next offset to scan; ``None`` at the segment's end."""


class TimeSearch:
    def __init__(self, log: PartitionLog, reader: LogReader) -> None:
        self._log = log
        self._reader = reader

    def segment_from(self, timestamp_ms: int, from_offset: int) -> ReadableSegment | None:
        """Return the first segment that ends after ``from_offset`` and has a timestamp at or after ``timestamp_ms``."""
        for segment in self._log.all_segments():
            if segment.end_offset > from_offset and segment.index.max_timestamp >= timestamp_ms:
                return segment
        return None

    def segment_at(self, base_offset: int) -> ReadableSegment | None:
        """Return the segment that begins at exactly this offset."""
        segment = self._log.segment_at(base_offset)
        return segment if segment is not None and segment.base_offset == base_offset else None

    def batch_in(self, segment: ReadableSegment, timestamp_ms: int, from_offset: int) -> TimedBatch | None:
        """Return the segment's first batch that may have a record at or after ``timestamp_ms``, from ``from_offset`` to
        the high watermark.
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
        """Return (greatest timestamp, base offset) of each segment that has a timestamp, newest first."""
        times = [
            (segment.index.max_timestamp, segment.base_offset)
            for segment in self._log.all_segments()
            if segment.index.max_timestamp >= 0
        ]
        return sorted(times, key=lambda pair: (-pair[0], pair[1]))

    def batch_at_start(self, segment: ReadableSegment) -> TimedBatch | None:
        """Return the batch that begins before the log's start offset and ends after it, or None. The timestamp in
        its header includes deleted records. So the greatest timestamp of the other records is known only after
        decompression.
        """
        start = self._log.start_offset
        if segment.base_offset < start < segment.end_offset:
            for position, header in segment_headers(segment, start, 0):
                return TimedBatch(segment, position, header) if header.base_offset < start else None
        return None

    def scan_segment(self, segment: ReadableSegment, so_far: GreatestTimestampScan) -> GreatestTimestampScan:
        """Scan up to 2,000 more headers of a segment for the greatest timestamp. Consider only batches that begin
        between the log's start offset and the high watermark.
        """
        log = self._log
        if so_far.next_offset is None:
            return so_far
        best = so_far.batch
        from_offset = max(so_far.next_offset, log.start_offset)
        for count, (position, header) in enumerate(segment_headers(segment, from_offset, 0)):
            if header.base_offset >= log.high_watermark:
                break
            if count >= _HEADERS_AT_ONCE:
                return GreatestTimestampScan(best, header.base_offset)
            if header.base_offset < log.start_offset or not header.count:
                continue
            if best is None or header.max_timestamp > best.header.max_timestamp:
                best = TimedBatch(segment, position, header)
        return GreatestTimestampScan(best, None)
