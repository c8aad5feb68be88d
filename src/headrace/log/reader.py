"""Reads a partition: complete batches with a valid CRC, never beyond the high watermark.

The reader remembers the positions at which recent reads ended. A read from another offset finds a nearby position with
the sparse index and scans headers from there. A read stops before damaged bytes. A read that would begin with damaged
bytes raises ``CorruptBatch``. A read that begins after them succeeds.

Archived segments follow the same rules, but ``plan`` does not access the archive. For them, ``ReadPlan.fetch`` also
finds the position, so that all waits for the archive happen in one call, which runs in a thread.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass

from headrace.checksum import crc32c
from headrace.errors import CorruptBatch
from headrace.log.index import SparseIndex
from headrace.log.partition import PartitionLog
from headrace.log.scan import crc_matches, find_whole_batch, is_followed, scan_headers
from headrace.log.segment import ReadableSegment
from headrace.records import HEADER_SIZE, BatchHeader, RecordError, read_header
from headrace.records.batch import CRC_START, HEADER_START, LENGTH_AT, LENGTH_END, LENGTH_MIN, MAGIC

__all__ = ["ARCHIVED_BYTES_MAX", "LogReader", "ReadPlan", "Slice", "check_batch_length"]

_POSITIONS_MAX = 64
_INDEXES_MAX = 4
_UNKNOWN = -1

ARCHIVED_BYTES_MAX = 4 << 20
"""Maximum bytes per read from the archive; a single larger batch is still read completely."""


@dataclass(frozen=True, slots=True)
class Slice:
    """Complete batches, the offset after the last batch, and the number of bytes read from the file."""

    data: memoryview
    next_offset: int
    read_bytes: int = 0

    def __len__(self) -> int:
        return len(self.data)


@dataclass(slots=True)
class ReadPlan:
    """What one read fetches, and from where. ``fetch`` may run in any thread while the segment is pinned."""

    segment: ReadableSegment
    position: int
    limit: int
    size: int
    offset: int
    whole_first: bool
    below: int
    """The read ends before this offset."""
    base: int
    """The base offset of the first batch."""
    interval: int
    """Bytes between two index entries, in case the index must be rebuilt."""

    @property
    def key(self) -> Hashable:
        """Equal for plans that read the same bytes."""
        return self.segment.path, self.offset, self.size, self.whole_first, self.below

    def fetch(self, *, wait: bool) -> bytes | bytearray | None:
        if self.segment.is_archived and not wait:
            return None
        if self.position == _UNKNOWN:
            self.position, self.base = find_batch(
                self.segment, self.segment.loaded_index(self.interval), self.offset
            )
        file = self.segment.file
        read = file.pread if wait else file.pread_nowait
        data = read(min(self.size, self.limit - self.position), self.position)
        if data is None or not self.whole_first:
            return data
        if len(data) < HEADER_SIZE:
            data = read(min(HEADER_SIZE, self.limit - self.position), self.position)
            if data is None or len(data) < HEADER_SIZE:
                return data
        first = int.from_bytes(data[LENGTH_AT:LENGTH_END], "big") + LENGTH_END
        if len(data) < first <= self.limit - self.position:
            if self.segment.is_archived:
                self._check_batch_length(data)
            return read(first, self.position)
        return data

    def _check_batch_length(self, head: bytes | bytearray) -> None:
        try:
            check_batch_length(self.segment, self.position, read_header(head))
        except RecordError as error:
            raise CorruptBatch(self.segment.path, self.position, error.message) from error


class LogReader:
    def __init__(self, log: PartitionLog) -> None:
        self.log = log
        self._positions: OrderedDict[int, tuple[ReadableSegment, int]] = OrderedDict()
        self._loaded: list[ReadableSegment] = []

    def plan(
        self, offset: int, max_bytes: int, *, whole_first: bool = True, committed: bool = False
    ) -> ReadPlan | None:
        """Plan a read from ``offset``; returns ``None`` if ``offset`` is at the end.

        With ``whole_first`` the first batch is read completely, even if it exceeds ``max_bytes``. The end is the last
        stable offset with ``committed``, else the high watermark.
        """
        log = self.log
        log.check_range(offset)
        end = log.last_stable_offset if committed else log.high_watermark
        if offset >= end:
            return None
        segment = self._segment_with(offset)
        position, base = self._find(segment, offset)
        limit = log.readable_size(segment)
        size = max_bytes
        if segment.is_archived:
            # Use the end of the segment, so that plans for the same bytes remain equal while the log grows.
            size, end = min(size, ARCHIVED_BYTES_MAX), min(end, segment.end_offset)
        return ReadPlan(
            segment,
            position,
            limit,
            max(size, 0),
            offset,
            whole_first,
            end,
            base,
            log.config.index_interval_bytes,
        )

    def finish(self, plan: ReadPlan, data: bytes | bytearray) -> Slice:
        """Validate the bytes that a plan fetched; returns the complete batches."""
        view = memoryview(data)
        size = len(view)
        position = 0
        offset, expected = plan.offset, plan.base
        first = True
        while position + HEADER_SIZE <= size:
            base, length, epoch, magic, crc, _, delta = HEADER_START.unpack_from(view, position)
            if base >= plan.below and not first:
                break
            end = position + length + LENGTH_END
            if (
                magic != MAGIC
                or length < LENGTH_MIN
                or delta < 0
                # The CRC does not cover the epoch. With a future epoch, clients would search for lost records.
                or not 0 <= epoch <= self.log.leader_epoch
                # The CRC does not cover the offset. A batch must begin where the previous batch ends.
                or base != expected
                or base + delta < offset
            ):
                return self._end_at_damage(plan, view, position, offset, "its header is invalid")
            if end > size:
                break
            if crc32c(view[position + CRC_START : end]) != crc:
                return self._end_at_damage(plan, view, position, offset, "its CRC does not match")
            offset = expected = base + delta + 1
            position = end
            first = False
        if not position and plan.whole_first:
            raise CorruptBatch(
                plan.segment.path, plan.position, "its length exceeds the end of the written bytes"
            )
        if position:
            self._remember(offset, plan.segment, plan.position + position)
        return _slice(view, position, offset)

    def read(
        self, offset: int, max_bytes: int, *, whole_first: bool = True, committed: bool = False
    ) -> Slice:
        """Plan, fetch and validate in one call; waits for the disk if necessary."""
        plan = self.plan(offset, max_bytes, whole_first=whole_first, committed=committed)
        if plan is None:
            return Slice(memoryview(b""), offset)
        data = plan.fetch(wait=True)
        assert data is not None
        return self.finish(plan, data)

    def _end_at_damage(
        self, plan: ReadPlan, view: memoryview, position: int, offset: int, reason: str
    ) -> Slice:
        if position:
            return _slice(view, position, offset)
        raise CorruptBatch(plan.segment.path, plan.position, reason)

    # Positions

    def _segment_with(self, offset: int) -> ReadableSegment:
        segment = self.log.segment_at(offset)
        if segment is None:
            first = self.log.segments[0]
            raise CorruptBatch(first.path, 0, f"the previous file, with offset {offset}, is missing")
        if offset >= segment.end_offset:
            raise CorruptBatch(segment.path, segment.size, f"the next file, with offset {offset}, is missing")
        return segment

    def _find(self, segment: ReadableSegment, offset: int) -> tuple[int, int]:
        """Return the position and the base offset of the batch that contains ``offset``."""
        remembered = self._positions.get(offset)
        if remembered is not None and remembered[0] is segment and remembered[1] < segment.size:
            return remembered[1], offset
        if segment.is_archived:
            return _UNKNOWN, offset
        return find_batch(segment, self.index_of(segment), offset)

    def index_of(self, segment: ReadableSegment) -> SparseIndex:
        """Return the loaded index of a segment.

        If too many indexes of sealed segments are in memory, the least recently used index is unloaded. Indexes of
        archived segments have their own cache.
        """
        index = segment.loaded_index(self.log.config.index_interval_bytes)
        if segment is self.log.active or segment.is_archived:
            return index
        if segment in self._loaded:
            self._loaded.remove(segment)
        self._loaded.append(segment)
        if len(self._loaded) > _INDEXES_MAX:
            self._loaded.pop(0).index.unload()
        return index

    def _remember(self, offset: int, segment: ReadableSegment, position: int) -> None:
        self._positions[offset] = (segment, position)
        self._positions.move_to_end(offset)
        if len(self._positions) > _POSITIONS_MAX:
            self._positions.popitem(last=False)


def check_batch_length(segment: ReadableSegment, position: int, header: BatchHeader) -> None:
    """Check the length of a large archived batch before reading it: the next batch must begin at its end.

    The CRC does not cover the length, and a wrong length could cause a very large download.
    """
    if not segment.is_archived or header.size <= ARCHIVED_BYTES_MAX:
        return
    if not is_followed(
        segment.file, position + header.size, segment.size, header.next_offset, segment.end_offset
    ):
        raise CorruptBatch(
            segment.path, position, "its length is wrong: the next batch does not begin at its end"
        )


def find_batch(segment: ReadableSegment, index: SparseIndex, offset: int) -> tuple[int, int]:
    """Return the position and the base offset of the batch that contains ``offset``."""
    expected, position = index.floor(offset)
    last = position
    for batch_position, header in scan_headers(segment.file, position, segment.size):
        if header.base_offset != expected or header.base_offset > offset:
            break
        last = batch_position
        if header.next_offset > offset:
            if header.base_offset == offset or _has_right_offsets(segment, batch_position, header):
                return batch_position, header.base_offset
            position = batch_position
            break
        expected = header.next_offset
        position = batch_position + header.size
    return _find_after_damage(segment, last, position, offset)


def _has_right_offsets(segment: ReadableSegment, position: int, header: BatchHeader) -> bool:
    """Whether the offsets in the header are right. A damaged header can claim the offsets of later batches."""
    file, end = segment.file, position + header.size
    if is_followed(file, end, segment.size, header.next_offset, segment.end_offset):
        return True
    # The next header may be the damaged one. The length of a large archived batch must be confirmed before it is read.
    is_readable = not segment.is_archived or header.size <= ARCHIVED_BYTES_MAX
    return is_readable and crc_matches(file, position, header)


def _find_after_damage(segment: ReadableSegment, last: int, position: int, offset: int) -> tuple[int, int]:
    """Search for an intact batch with ``offset``, after the valid headers ended at ``position``.

    The search begins at ``last``, the position of the last valid header. The CRC does not cover the length in that
    header, so the length may be wrong and may have skipped batches.
    """
    file, size, lowest = segment.file, segment.size, 0
    intact = find_whole_batch(file, last, size, lowest, offset)
    while intact is not None:
        batch_position, header = intact
        batch_end = batch_position + header.size
        if is_followed(file, batch_end, size, header.next_offset, segment.end_offset):
            if header.base_offset <= offset < header.next_offset:
                return batch_position, header.base_offset
            lowest = max(lowest, header.next_offset)
        intact = find_whole_batch(file, batch_end, size, lowest, offset)
    if position >= segment.size:
        raise CorruptBatch(segment.path, position, f"the next file, with offset {offset}, is missing")
    raise CorruptBatch(segment.path, position, f"no intact batch has offset {offset}")


def _slice(view: memoryview, size: int, next_offset: int) -> Slice:
    """Return the first ``size`` bytes. A small part is copied, because a view would retain the whole buffer."""
    part = view[:size]
    if size < len(view) // 2:
        part = memoryview(bytes(part))
    return Slice(part, next_offset, len(view))
