"""Finds records of a partition by time, without blocking the event loop.

The event loop scans the batch headers of segments on disk, and an executor decompresses long or compressed batches.
A thread of ``ArchiveReads`` reads archived segments, and a lookup waits for it at most ``wait_s``. That thread reads
the bytes before it passes them to the executor, so the executor never waits for the archive.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from contextlib import ExitStack
from functools import partial

from headrace.broker.storage.archive_access import ArchiveReads, ReadIsLate
from headrace.log.archived_segment import ArchivedSegment
from headrace.log.partition import PartitionLog
from headrace.log.reader import LogReader
from headrace.log.times import GreatestTimestampScan, TimedBatch, TimedOffset, TimeSearch
from headrace.records import RecordLimits

__all__ = ["TimeLookup", "TimedOffset"]


class TimeLookup:
    """One lookup. It raises ``ReadIsLate`` when it has waited for the archive for ``wait_s`` in total."""

    def __init__(
        self,
        log: PartitionLog,
        reader: LogReader,
        limits: RecordLimits,
        archive_reads: ArchiveReads,
        executor: Executor,
        wait_s: float,
    ) -> None:
        self._log = log
        self._search = TimeSearch(log, reader)
        self._limits = limits
        self._archive_reads = archive_reads
        self._executor = executor
        self._deadline = asyncio.get_running_loop().time() + wait_s

    async def offset_for_time(self, timestamp_ms: int) -> TimedOffset | None:
        """Return the first record below the high watermark whose timestamp is at or after ``timestamp_ms``."""
        offset = self._log.start_offset
        while offset < self._log.high_watermark:
            # Segments can be archived or deleted between two steps, so each step reads the current list of segments.
            segment = self._search.segment_from(timestamp_ms, offset)
            if segment is None:
                return None
            if isinstance(segment, ArchivedSegment):
                find = partial(self._first_in_archived, segment, timestamp_ms, offset)
                record = await self._in_archive(("time", segment.path, timestamp_ms, offset), segment, find)
                offset = segment.end_offset
            else:
                batch = self._search.batch_in(segment, timestamp_ms, offset)
                record = None if batch is None else await self._unpack(batch, self._first_from(timestamp_ms))
                offset = segment.end_offset if batch is None else batch.header.next_offset
            if record is not None:
                return record
        return None

    async def offset_of_max_timestamp(self) -> TimedOffset | None:
        """Return the record with the greatest timestamp below the high watermark, or the first of such records."""
        best: TimedOffset | None = None
        for greatest, base_offset in self._search.segments_by_time():
            if best is not None and greatest <= best[1]:
                break
            record = await self.offset_for_time(greatest)
            if record is None:
                # The batch with this timestamp is not visible yet, is below the start offset, or was emptied by
                # compaction. Search the other batches of the segment.
                record = await self._latest_in(base_offset)
            best = _later(best, record)
        return best

    async def _latest_in(self, base_offset: int) -> TimedOffset | None:
        segment = self._search.segment_at(base_offset)
        if segment is None:
            return None
        if isinstance(segment, ArchivedSegment):
            return await self._latest_in_archive(segment)
        first = self._search.batch_at_start(segment)
        at_start = None if first is None else await self._unpack(first, self._latest)
        best_batch = GreatestTimestampScan(None, base_offset)
        with ExitStack() as pins:
            while best_batch.next_offset is not None:
                segment = self._search.segment_at(base_offset)
                if segment is None:
                    break
                if isinstance(segment, ArchivedSegment):
                    return await self._latest_in_archive(segment)
                previous, best_batch = best_batch, self._search.scan_segment(segment, best_batch)
                if best_batch.batch is not previous.batch:
                    # Pin the file, because a compaction can replace it before the batch is decompressed.
                    segment.pin()
                    pins.callback(segment.unpin)
                await asyncio.sleep(0)
            after_start = (
                None if best_batch.batch is None else await self._unpack(best_batch.batch, self._latest)
            )
        return _later(at_start, after_start)

    def _first_from(self, timestamp_ms: int) -> Callable[[TimedBatch], TimedOffset | None]:
        return lambda batch: batch.first_at_or_after(timestamp_ms, self._log.start_offset, self._limits)

    def _latest(self, batch: TimedBatch) -> TimedOffset | None:
        return batch.latest(self._log.start_offset, self._limits)

    async def _unpack(
        self, batch: TimedBatch, find: Callable[[TimedBatch], TimedOffset | None]
    ) -> TimedOffset | None:
        if batch.is_cheap_to_decode:
            return find(batch)
        batch.segment.pin()
        try:
            return await asyncio.get_running_loop().run_in_executor(self._executor, find, batch)
        finally:
            batch.segment.unpin()

    # In the archive

    async def _in_archive(
        self, key: tuple[object, ...], segment: ArchivedSegment, find: Callable[[], TimedOffset | None]
    ) -> TimedOffset | None:
        remaining_s = self._deadline - asyncio.get_running_loop().time()
        if remaining_s <= 0:
            # The deadline has passed, so do not start another read.
            raise ReadIsLate
        return await self._archive_reads.run(key, segment, find, remaining_s)

    def _first_in_archived(
        self, segment: ArchivedSegment, timestamp_ms: int, offset: int
    ) -> TimedOffset | None:
        while (batch := self._search.batch_in(segment, timestamp_ms, offset)) is not None:
            record = self._unpack_loaded(batch, self._first_from(timestamp_ms))
            if record is not None:
                return record
            offset = batch.header.next_offset
        return None

    async def _latest_in_archive(self, segment: ArchivedSegment) -> TimedOffset | None:
        find = partial(self._latest_in_archived, segment)
        return await self._in_archive(("latest", segment.path, self._log.start_offset), segment, find)

    def _latest_in_archived(self, segment: ArchivedSegment) -> TimedOffset | None:
        first = self._search.batch_at_start(segment)
        at_start = None if first is None else self._unpack_loaded(first, self._latest)
        best_batch = GreatestTimestampScan(None, segment.base_offset)
        while best_batch.next_offset is not None:
            best_batch = self._search.scan_segment(segment, best_batch)
        after_start = (
            None if best_batch.batch is None else self._unpack_loaded(best_batch.batch, self._latest)
        )
        return _later(at_start, after_start)

    def _unpack_loaded(
        self, batch: TimedBatch, find: Callable[[TimedBatch], TimedOffset | None]
    ) -> TimedOffset | None:
        loaded = batch.loaded()
        return find(loaded) if batch.is_cheap_to_decode else self._executor.submit(find, loaded).result()


def _later(first: TimedOffset | None, second: TimedOffset | None) -> TimedOffset | None:
    """Return the record with the greater timestamp. If both are equal, return the record with the lower offset."""
    records = [record for record in (first, second) if record is not None]
    return max(records, key=lambda record: (record[1], -record[0]), default=None)
