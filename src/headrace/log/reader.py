"""Reading a partition: whole batches, each checked against its CRC, never past the high watermark.

A read starts where the last one ended, if that is remembered, or else at the sparse index and walks headers
from there. Bytes that fail their check end the read before them; a read that would have to begin with them
raises ``CorruptBatch``, and one that begins behind them is served.

What is in the archive is read by the same rules, but a plan for it looks at nothing there: ``ReadPlan.fetch`` finds the
place as well, so that all that waits for the archive is in one call, for a thread.
"""

from __future__ import annotations

import struct
from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass

from headrace.checksum import crc32c
from headrace.errors import CorruptBatch
from headrace.log.index import SparseIndex
from headrace.log.partition import PartitionLog
from headrace.log.scan import find_whole_batch, is_followed, scan_headers
from headrace.log.segment import ReadableSegment
from headrace.records import HEADER_SIZE, BatchHeader, RecordError, read_header

__all__ = ["ARCHIVED_BYTES_MAX", "LogReader", "ReadPlan", "Slice", "expect_true_length"]

# base offset, batch length, leader epoch, magic, CRC, attributes, last offset delta
_HEAD = struct.Struct(">qiibIhi")
_LENGTH_AT = 12
_CRC_FROM = 21
_PLACES_REMEMBERED = 64
_COLUMNS_KEPT = 4
_UNKNOWN = -1

ARCHIVED_BYTES_MAX = 4 << 20
"""What one read takes from the archive, one batch that is larger aside."""


@dataclass(frozen=True, slots=True)
class Slice:
    """Whole batches, the offset behind the last of them, and how much was read to find them."""

    data: memoryview
    next_offset: int
    read_bytes: int = 0

    def __len__(self) -> int:
        return len(self.data)


@dataclass(slots=True)
class ReadPlan:
    """Where the bytes of one read lie; ``fetch`` may run in any thread while the segment is pinned."""

    segment: ReadableSegment
    position: int
    limit: int
    size: int
    offset: int
    whole_first: bool
    below: int
    """Batches from this offset on are left out."""
    base: int
    """Where the first batch begins."""
    interval: int
    """Of an index that has to be made again."""

    @property
    def key(self) -> Hashable:
        """The same for plans that read the same."""
        return self.segment.path, self.offset, self.size, self.whole_first, self.below

    def fetch(self, *, wait: bool) -> bytes | bytearray | None:
        if self.segment.is_archived and not wait:
            return None
        if self.position == _UNKNOWN:
            self.position, self.base = find_batch(
                self.segment, self.segment.loaded_index(self.interval), self.offset
            )
        file = self.segment.file
        read = file.pread if wait else file.pread_ready
        data = read(min(self.size, self.limit - self.position), self.position)
        if data is None or not self.whole_first:
            return data
        if len(data) < HEADER_SIZE:
            data = read(min(HEADER_SIZE, self.limit - self.position), self.position)
            if data is None or len(data) < HEADER_SIZE:
                return data
        first = int.from_bytes(data[8:12], "big") + _LENGTH_AT
        if len(data) < first <= self.limit - self.position:
            if self.segment.is_archived:
                self._expect_true_length(data)
            return read(first, self.position)
        return data

    def _expect_true_length(self, head: bytes | bytearray) -> None:
        try:
            expect_true_length(self.segment, self.position, read_header(head))
        except RecordError as error:
            raise CorruptBatch(self.segment.path, self.position, error.message) from error


class LogReader:
    def __init__(self, log: PartitionLog) -> None:
        self.log = log
        self._places: OrderedDict[int, tuple[ReadableSegment, int]] = OrderedDict()
        self._columns: list[ReadableSegment] = []

    def plan(
        self, offset: int, max_bytes: int, *, whole_first: bool = True, committed: bool = False
    ) -> ReadPlan | None:
        """How to read from ``offset``; ``None`` at the end. ``whole_first``: the first batch comes whole,
        however large. ``committed``: the end is the last stable offset.
        """
        log = self.log
        log.check_range(offset)
        end = log.last_stable_offset if committed else log.high_watermark
        if offset >= end:
            return None
        segment = self._segment_with(offset)
        position, base = self._place(segment, offset)
        limit = log.readable_size(segment)
        size = max_bytes
        if segment.is_archived:
            # All of it is old: plans that read the same are the same while the log grows.
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
        """Check the bytes that a plan fetched and keep the whole batches."""
        view = memoryview(data)
        size = len(view)
        position = 0
        offset, expected = plan.offset, plan.base
        first = True
        while position + HEADER_SIZE <= size:
            base, length, epoch, magic, crc, _, delta = _HEAD.unpack_from(view, position)
            if base >= plan.below and not first:
                break
            end = position + length + _LENGTH_AT
            if (
                magic != 2
                or length < HEADER_SIZE - _LENGTH_AT
                or delta < 0
                # The epoch is outside the CRC. One that has not been yet would send clients looking for lost data.
                or not 0 <= epoch <= self.log.leader_epoch
                # So is the offset. A batch begins where the one before it ends.
                or base != expected
                or base + delta < offset
            ):
                return self._end_at_damage(plan, view, position, offset, "its header does not read")
            if end > size:
                break
            if crc32c(view[position + _CRC_FROM : end]) != crc:
                return self._end_at_damage(plan, view, position, offset, "its CRC does not match")
            offset = expected = base + delta + 1
            position = end
            first = False
        if not position and plan.whole_first:
            raise CorruptBatch(
                plan.segment.path, plan.position, "its length passes the end of what was written"
            )
        if position:
            self._remember(offset, plan.segment, plan.position + position)
        return _slice(view, position, offset)

    def read(
        self, offset: int, max_bytes: int, *, whole_first: bool = True, committed: bool = False
    ) -> Slice:
        """Plan, fetch and check in one go, waiting for the disk where need be."""
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

    # Finding places

    def _segment_with(self, offset: int) -> ReadableSegment:
        segment = self.log.segment_at(offset)
        if segment is None:
            first = self.log.segments[0]
            raise CorruptBatch(first.path, 0, f"the file before it, which held offset {offset}, is missing")
        if offset >= segment.end_offset:
            raise CorruptBatch(segment.path, segment.size, f"the file that held offset {offset} is missing")
        return segment

    def _place(self, segment: ReadableSegment, offset: int) -> tuple[int, int]:
        """Byte of the batch that holds ``offset``, and the offset at which it begins."""
        place = self._places.get(offset)
        if place is not None and place[0] is segment and place[1] < segment.size:
            return place[1], offset
        if segment.is_archived:
            return _UNKNOWN, offset
        return find_batch(segment, self.index_of(segment), offset)

    def index_of(self, segment: ReadableSegment) -> SparseIndex:
        """A sealed segment's index; the one longest unused is dropped when too many are in memory. Those of the archive
        have a limit of their own, and are asked for by threads.
        """
        index = segment.loaded_index(self.log.config.index_interval_bytes)
        if segment is self.log.active or segment.is_archived:
            return index
        if segment in self._columns:
            self._columns.remove(segment)
        self._columns.append(segment)
        if len(self._columns) > _COLUMNS_KEPT:
            self._columns.pop(0).index.unload()
        return index

    def _remember(self, offset: int, segment: ReadableSegment, position: int) -> None:
        self._places[offset] = (segment, position)
        self._places.move_to_end(offset)
        if len(self._places) > _PLACES_REMEMBERED:
            self._places.popitem(last=False)


def expect_true_length(segment: ReadableSegment, position: int, header: BatchHeader) -> None:
    """A batch's length is not under its CRC. In the archive it must lead to the next batch before much is read."""
    if not segment.is_archived or header.size <= ARCHIVED_BYTES_MAX:
        return
    if not is_followed(
        segment.file, position + header.size, segment.size, header.next_offset, segment.end_offset
    ):
        raise CorruptBatch(segment.path, position, "its length does not lead to the next batch")


def find_batch(segment: ReadableSegment, index: SparseIndex, offset: int) -> tuple[int, int]:
    """Byte of the batch that holds ``offset``, and the offset at which it begins."""
    expected, position = index.floor(offset)
    last = position
    for found, header in scan_headers(segment.file, position, segment.size):
        if header.base_offset != expected or header.base_offset > offset:
            break
        last = found
        if header.next_offset > offset:
            return found, header.base_offset
        expected = header.next_offset
        position = found + header.size
    return _find_behind_damage(segment, last, position, offset)


def _find_behind_damage(segment: ReadableSegment, last: int, position: int, offset: int) -> tuple[int, int]:
    """The headers broke off at ``position``, before ``offset``: look for it among the whole batches from the ``last``
    one on, because a length is not under the CRC, and may have led too far.
    """
    file, size, lowest = segment.file, segment.size, 0
    resumed = find_whole_batch(file, last, size, lowest, offset)
    while resumed is not None:
        found, header = resumed
        behind = found + header.size
        if is_followed(file, behind, size, header.next_offset, segment.end_offset):
            if header.base_offset <= offset < header.next_offset:
                return found, header.base_offset
            lowest = max(lowest, header.next_offset)
        resumed = find_whole_batch(file, behind, size, lowest, offset)
    if position >= segment.size:
        raise CorruptBatch(segment.path, position, f"the file that held offset {offset} is missing")
    raise CorruptBatch(segment.path, position, f"no whole batch holds offset {offset}")


def _slice(view: memoryview, size: int, next_offset: int) -> Slice:
    """The first ``size`` bytes. A view keeps all that was read in memory, so a small part of it is copied."""
    part = view[:size]
    if size < len(view) // 2:
        part = memoryview(bytes(part))
    return Slice(part, next_offset, len(view))
