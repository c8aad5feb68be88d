"""Finding a record of a partition by its time, while the event loop serves others.

Headers of the partition's own segments are looked at on the event loop, and batches that are long or compressed are
unpacked by an executor. All that is read of an archived segment is read in a thread of ``archive_reads``, for which a
look-up waits no longer than it was told to. That thread has the executor unpack as well, of bytes that it has read
before: whoever unpacks never waits for the archive.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from contextlib import ExitStack
from functools import partial

from headrace.broker.archive_reads import ArchiveReads, ReadIsLate
from headrace.log.archived_segment import ArchivedSegment
from headrace.log.partition import PartitionLog
from headrace.log.reader import LogReader
from headrace.log.times import Greatest, TimedBatch, TimeSearch
from headrace.records import RecordLimits

__all__ = ["Place", "TimeLookup"]

Place = tuple[int, int]
"""Offset and timestamp of a record."""


class TimeLookup:
    """One look-up. It raises ``ReadIsLate`` once the archive has kept it for ``wait_s`` in all."""

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

    async def offset_for_time(self, timestamp_ms: int) -> Place | None:
        """The first record at or after the time, below the high watermark."""
        offset = self._log.start_offset
        while offset < self._log.high_watermark:
            # Segments may be archived or deleted meanwhile, so each step begins with what there is.
            segment = self._search.segment_from(timestamp_ms, offset)
            if segment is None:
                return None
            if isinstance(segment, ArchivedSegment):
                look = partial(self._first_in_archived, segment, timestamp_ms, offset)
                found = await self._in_archive(("time", segment.path, timestamp_ms, offset), segment, look)
                offset = segment.end_offset
            else:
                batch = self._search.batch_in(segment, timestamp_ms, offset)
                found = None if batch is None else await self._unpack(batch, self._first_from(timestamp_ms))
                offset = segment.end_offset if batch is None else batch.header.next_offset
            if found is not None:
                return found
        return None

    async def offset_of_max_timestamp(self) -> Place | None:
        """The first record with the greatest timestamp below the high watermark."""
        best: Place | None = None
        for greatest, base_offset in self._search.segments_by_time():
            if best is not None and greatest <= best[1]:
                break
            found = await self.offset_for_time(greatest)
            if found is None:
                # That batch is not visible yet, lies below the start, or compaction has emptied it: the others are
                # looked at.
                found = await self._latest_in(base_offset)
            best = _later(best, found)
        return best

    async def _latest_in(self, base_offset: int) -> Place | None:
        segment = self._search.segment_at(base_offset)
        if segment is None:
            return None
        if isinstance(segment, ArchivedSegment):
            return await self._latest_in_archive(segment)
        first = self._search.batch_at_start(segment)
        at_start = None if first is None else await self._unpack(first, self._latest)
        so_far = Greatest(None, base_offset)
        with ExitStack() as pins:
            while so_far.next_offset is not None:
                segment = self._search.segment_at(base_offset)
                if segment is None:
                    break
                if isinstance(segment, ArchivedSegment):
                    return await self._latest_in_archive(segment)
                before, so_far = so_far, self._search.greatest_in(segment, so_far)
                if so_far.batch is not before.batch:
                    # A compaction may give the name of its file to another one before the batch is unpacked.
                    segment.pin()
                    pins.callback(segment.unpin)
                await asyncio.sleep(0)
            behind = None if so_far.batch is None else await self._unpack(so_far.batch, self._latest)
        return _later(at_start, behind)

    def _first_from(self, timestamp_ms: int) -> Callable[[TimedBatch], Place | None]:
        return lambda batch: batch.first_from(timestamp_ms, self._log.start_offset, self._limits)

    def _latest(self, batch: TimedBatch) -> Place | None:
        return batch.latest(self._log.start_offset, self._limits)

    async def _unpack(self, batch: TimedBatch, look: Callable[[TimedBatch], Place | None]) -> Place | None:
        if batch.is_short:
            return look(batch)
        batch.segment.pin()
        try:
            return await asyncio.get_running_loop().run_in_executor(self._executor, look, batch)
        finally:
            batch.segment.unpin()

    # In the archive

    async def _in_archive(
        self, key: tuple[object, ...], segment: ArchivedSegment, look: Callable[[], Place | None]
    ) -> Place | None:
        left_s = self._deadline - asyncio.get_running_loop().time()
        if left_s <= 0:
            # A read that nobody waits for would only take a place among those that others wait for.
            raise ReadIsLate
        return await self._archive_reads.run(key, segment, look, left_s)

    def _first_in_archived(self, segment: ArchivedSegment, timestamp_ms: int, offset: int) -> Place | None:
        while (batch := self._search.batch_in(segment, timestamp_ms, offset)) is not None:
            found = self._unpack_loaded(batch, self._first_from(timestamp_ms))
            if found is not None:
                return found
            offset = batch.header.next_offset
        return None

    async def _latest_in_archive(self, segment: ArchivedSegment) -> Place | None:
        look = partial(self._latest_in_archived, segment)
        return await self._in_archive(("latest", segment.path, self._log.start_offset), segment, look)

    def _latest_in_archived(self, segment: ArchivedSegment) -> Place | None:
        first = self._search.batch_at_start(segment)
        at_start = None if first is None else self._unpack_loaded(first, self._latest)
        so_far = Greatest(None, segment.base_offset)
        while so_far.next_offset is not None:
            so_far = self._search.greatest_in(segment, so_far)
        behind = None if so_far.batch is None else self._unpack_loaded(so_far.batch, self._latest)
        return _later(at_start, behind)

    def _unpack_loaded(self, batch: TimedBatch, look: Callable[[TimedBatch], Place | None]) -> Place | None:
        loaded = batch.loaded()
        return look(loaded) if batch.is_short else self._executor.submit(look, loaded).result()


def _later(one: Place | None, other: Place | None) -> Place | None:
    """The one with the greater timestamp; of equals the first in the log."""
    places = [place for place in (one, other) if place is not None]
    return max(places, key=lambda place: (place[1], -place[0]), default=None)
