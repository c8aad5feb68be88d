"""Compaction of one partition: of each key only the newest record stays, below the segments that are left alone.

Which segments may be touched, and whether it is worth it, is decided by ``due``. Left alone are the one that is being
written to, everything at or above the last stable offset, everything that no durable mark has left behind, and segments
with a record younger than ``min.compaction.lag.ms``.

    begin             event loop    take the segments, and what is known of producers and transactions
    read_keys         a thread      note the newest offset of each key that is new since the last time
    next_group        a thread      write what is left of a few segments aside, and sync it
    forget_markers    event loop    of aborted transactions whose last trace goes
    decide            a thread      the swap becomes durable: from here on the new file counts
    adopt             event loop    the new file takes its name and its place; readers of the old one keep it
    settle            a thread      remove the old files, then the decision
    finish            a thread      note how far it came

Memory is bounded by the map of keys, one batch, and two buffers. When the map is full, compaction goes as far as the
map and the rest is new for the next time. A batch that does not read back stops it: nothing is dropped next to damage.
Interrupted or killed anywhere, it leaves either the old segments or the new one (see ``swap``), and begins anew.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

from headrace.errors import CorruptBatch
from headrace.files import Files
from headrace.log.cleaner import Cleaner, KnownProducers
from headrace.log.compacted import Compacted
from headrace.log.compacted_file import CompactedFile
from headrace.log.key_map import KeyMap
from headrace.log.mark import Mark
from headrace.log.pace import Interrupted, Pace
from headrace.log.partition import PartitionLog
from headrace.log.segment import Segment
from headrace.log.swap import Swap
from headrace.log.transaction_walk import TransactionWalk
from headrace.records import (
    HEADER_SIZE,
    BatchHeader,
    RecordError,
    RecordLimits,
    crc_ok,
    open_batch,
    read_header,
)

__all__ = ["Compaction", "CompactionReport", "Due", "Group", "due", "needs_roll"]

_CHUNK_BYTES = 1 << 20
_OFFSETS_MAX = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Due:
    """Segments that may be compacted, oldest first, and the offset from which on they are new."""

    segments: tuple[Segment, ...]
    dirty_offset: int
    reason: str


@dataclass(slots=True)
class Group:
    """Neighbours that become one file."""

    segments: list[Segment]
    swap: Swap
    replacement: Segment
    markers_removed: list[int]
    records_removed: int
    is_news: bool


@dataclass(slots=True)
class CompactionReport:
    """Before and after are those of whole segments; read is more, because keys are read first, and so is written
    where a file turned out to be as the old ones.
    """

    bytes_before: int = 0
    bytes_after: int = 0
    bytes_read: int = 0
    bytes_written: int = 0
    records_removed: int = 0
    keys: int = 0
    clean_offset: int = 0


def due(log: PartitionLog, trusted_ms: int) -> Due | None:
    """What there is to compact now, if it is worth it."""
    config = log.config
    if not config.is_compacted or log.fenced is not None:
        return None
    if log.compacting is not None or log.unsettled is not None:
        return None
    limit = min(log.last_stable_offset, log.synced_mark.segment)
    segments = []
    for segment in log.segments[:-1]:
        if segment.end_offset > limit or _is_young(segment, trusted_ms, config.min_compaction_lag_ms):
            break
        segments.append(segment)
    dirty_offset = max(log.compacted.clean_offset, log.start_offset)
    dirty = [segment for segment in segments if segment.end_offset > dirty_offset]
    if dirty:
        dirty_bytes = sum(segment.size for segment in dirty)
        ratio = dirty_bytes / max(sum(segment.size for segment in segments), 1)
        if ratio > config.min_cleanable_dirty_ratio:
            return Due(tuple(segments), dirty_offset, "min.cleanable.dirty.ratio")
        if trusted_ms - _first_timestamp(dirty[0]) >= config.max_compaction_lag_ms:
            return Due(tuple(segments), dirty_offset, "max.compaction.lag.ms")
    if segments and 0 <= log.compacted.next_horizon_ms <= trusted_ms:
        return Due(tuple(segments), dirty_offset, "delete.retention.ms")
    return None


def needs_roll(log: PartitionLog, trusted_ms: int) -> bool:
    """Whether the segment that is being written to holds records that should have been compacted by now."""
    config = log.config
    if not config.is_compacted or log.fenced is not None or not log.active.size:
        return False
    age_ms = trusted_ms - min(log.active.created_ms, _first_timestamp(log.active))
    return age_ms >= config.max_compaction_lag_ms


def _is_young(segment: Segment, trusted_ms: int, lag_ms: int) -> bool:
    return lag_ms > 0 and segment.index.max_timestamp > trusted_ms - lag_ms


def _first_timestamp(segment: Segment) -> int:
    """When the segment's first batch was written by its producer; when the segment began, where that is not known."""
    try:
        stated = read_header(segment.file.pread(HEADER_SIZE, 0))
    except RecordError:
        return segment.created_ms
    timestamp = stated.max_timestamp if stated.has_delete_horizon else stated.base_timestamp
    return timestamp if timestamp > 0 else segment.created_ms


@dataclass(slots=True)
class Compaction:
    log: PartitionLog
    files: Files
    limits: RecordLimits
    now_ms: int
    segments: tuple[Segment, ...]
    dirty_offset: int
    end_offset: int
    mark: Mark
    keys: KeyMap
    pace: Pace
    stop: threading.Event
    cleaner: Cleaner
    dirty_walk: TransactionWalk
    report: CompactionReport = field(default_factory=CompactionReport)
    is_unsettled: bool = False
    """A swap may be decided and is not finished: only the next start can do that."""
    _done: int = 0

    @classmethod
    def begin(
        cls,
        log: PartitionLog,
        found: Due,
        files: Files,
        *,
        limits: RecordLimits,
        now_ms: int,
        memory_bytes: int,
        pace: Callable[[threading.Event], Pace],
    ) -> Compaction:
        """Take the segments; ``end`` gives them back, whatever happens between."""
        stop = threading.Event()
        end_offset = found.segments[-1].end_offset
        keys = KeyMap(memory_bytes)
        last_batches = set()
        epochs = {}
        for producer in log.producers:
            if producer.batches:
                last_batches.add((producer.producer_id, producer.batches[-1].last_offset))
            else:
                epochs[producer.producer_id] = producer.epoch
        cleaner = Cleaner(
            keys,
            found.dirty_offset,
            now_ms,
            log.config.delete_retention_ms,
            limits,
            TransactionWalk(log.transactions.aborted_between(log.segments[0].base_offset, end_offset)),
            KnownProducers(last_batches, epochs),
            tombstones_removed_below=log.compacted.tombstones_removed_below,
        )
        log.compacting = stop
        for segment in found.segments:
            segment.pin()
        return cls(
            log=log,
            files=files,
            limits=limits,
            now_ms=now_ms,
            segments=found.segments,
            dirty_offset=found.dirty_offset,
            end_offset=end_offset,
            mark=log.synced_mark,
            keys=keys,
            pace=pace(stop),
            stop=stop,
            cleaner=cleaner,
            dirty_walk=TransactionWalk(log.transactions.aborted_between(found.dirty_offset, end_offset)),
        )

    def end(self) -> None:
        for segment in self.segments:
            segment.unpin()
        self.log.compacting = None
        if self.is_unsettled:
            self.log.unsettled = "a compaction was decided and could not be finished"

    # In a thread

    def read_keys(self) -> None:
        """Note the keys of what is new, as far as the map takes them."""
        for segment in self.segments:
            if segment.end_offset <= self.dirty_offset:
                continue
            for header, batch in self._batches(segment):
                if header.base_offset < self.dirty_offset:
                    continue
                if not self.keys.has_room_for(header.count) and self.cleaner.map_end > self.dirty_offset:
                    return
                if header.is_control:
                    self.dirty_walk.pass_marker(batch, header)
                elif not self.dirty_walk.is_aborted(header):
                    self.keys.note(open_batch(batch, self.limits).records, header.base_offset)
                self.cleaner.map_end = header.next_offset

    def next_group(self) -> Group | None:
        """Write the next few segments aside as one; ``None`` when all that the map covers is done."""
        while self._done < len(self.segments):
            first = self.segments[self._done]
            if first.base_offset >= self.cleaner.map_end:
                return None
            group = self._written(first)
            self._done += len(group.segments)
            self.report.bytes_before += sum(segment.size for segment in group.segments)
            self.report.bytes_after += group.swap.size
            if group.is_news:
                return group
            group.swap.discard(self.files)
        return None

    def _written(self, first: Segment) -> Group:
        cleaner, config = self.cleaner, self.log.config
        removed, horizons, markers = (
            cleaner.removed_records,
            cleaner.horizons_set,
            len(cleaner.markers_removed),
        )
        file = CompactedFile(self.files, self.log.directory, first.base_offset, config.index_interval_bytes)
        segments: list[Segment] = []
        newest_ms = -1
        try:
            for segment in self.segments[self._done :]:
                if segments and not self._joins(segment, first, file.size):
                    break
                for header, batch in self._batches(segment):
                    newest_ms = max(newest_ms, header.max_timestamp)
                    cleaned = cleaner.clean(batch)
                    if cleaned is not None:
                        self.pace.moved(len(cleaned.data))
                        file.add(cleaned)
                segments.append(segment)
            swap = file.finish(segments[-1].end_offset, newest_ms)
        except RecordError as error:
            file.discard()
            raise CorruptBatch(segment.path, 0, error.message) from error
        except BaseException:
            file.discard()
            raise
        finally:
            self.report.bytes_written += file.written
        removed = cleaner.removed_records - removed
        return Group(
            segments,
            swap,
            Segment(self.files, self.log.directory, first.base_offset, file.index),
            cleaner.markers_removed[markers:],
            removed,
            is_news=len(segments) > 1 or removed > 0 or cleaner.horizons_set > horizons,
        )

    def _joins(self, segment: Segment, first: Segment, size: int) -> bool:
        """Whether another segment goes into the file. What will be left of it is not known, so it may get half as
        large again as others.
        """
        if (
            segment.base_offset >= self.cleaner.map_end
            or segment.end_offset - first.base_offset > _OFFSETS_MAX
        ):
            return False
        limit = self.log.config.segment_bytes
        return size < limit // 2 or size + segment.size <= limit

    def decide(self, group: Group) -> None:
        """After this the new file counts, whatever happens. Where it fails, ``is_unsettled`` says if that may be so."""
        try:
            self._check_stop()
            known = self.log.compacted
            if self.cleaner.tombstones_removed_below > known.tombstones_removed_below:
                # Before they are gone: whoever was away must be able to find out.
                self._note(replace(known, tombstones_removed_below=self.cleaner.tombstones_removed_below))
            # Neither of the mark's slots may point into a file that is about to go.
            self.log.settle_mark(self.mark)
            self.is_unsettled = True
            group.swap.decide(self.files)
        except (OSError, Interrupted):
            self.is_unsettled = self.is_unsettled and self.files.exists(group.swap.path)
            if not self.is_unsettled:
                group.swap.discard(self.files)
            raise

    def settle(self, group: Group) -> None:
        group.swap.settle(self.files, [segment.base_offset for segment in group.segments[1:]])
        self.is_unsettled = False

    def finish(self) -> CompactionReport:
        cleaner, report = self.cleaner, self.report
        self._note(Compacted(cleaner.map_end, cleaner.tombstones_removed_below, cleaner.next_horizon_ms))
        report.keys = len(self.keys)
        report.clean_offset = cleaner.map_end
        return report

    def _note(self, compacted: Compacted) -> None:
        if compacted != self.log.compacted:
            compacted.write(self.files, self.log.directory)
            self.log.compacted = compacted

    def _batches(self, segment: Segment) -> Iterator[tuple[BatchHeader, memoryview]]:
        """Every batch of a segment, checked as a reader would; raises ``CorruptBatch`` at the first that fails."""
        position, offset = 0, segment.base_offset
        chunk, chunk_at = memoryview(b""), 0
        while position < segment.size:
            self._check_stop()
            self.pace.breathe()
            at = position - chunk_at
            if at + HEADER_SIZE > len(chunk):
                chunk, chunk_at, at = self._read(segment, position, _CHUNK_BYTES), position, 0
            try:
                header = read_header(chunk, at)
            except RecordError as error:
                raise CorruptBatch(segment.path, position, error.message) from error
            if (
                header.base_offset != offset
                or header.last_offset_delta < 0
                or not 0 <= header.leader_epoch <= self.log.leader_epoch
                or position + header.size > segment.size
            ):
                raise CorruptBatch(segment.path, position, "its header does not read")
            if at + header.size > len(chunk):
                size = max(header.size, _CHUNK_BYTES)
                chunk, chunk_at, at = self._read(segment, position, size), position, 0
            batch = chunk[at : at + header.size]
            if not crc_ok(batch, 0, header.size):
                raise CorruptBatch(segment.path, position, "its CRC does not match")
            yield header, batch
            position += header.size
            offset = header.next_offset

    def _read(self, segment: Segment, position: int, size: int) -> memoryview:
        data = segment.file.pread(min(size, segment.size - position), position)
        self.report.bytes_read += len(data)
        self.pace.moved(len(data))
        return memoryview(data)

    def _check_stop(self) -> None:
        if self.stop.is_set():
            raise Interrupted

    # In the event loop

    def forget_markers(self, group: Group) -> None:
        """Before the decision: a reader must not be told to wait for a marker that is gone."""
        if group.markers_removed:
            self.log.forget_aborted(group.markers_removed)

    def adopt(self, group: Group) -> None:
        group.swap.rename(self.files)
        self.log.adopt(group.segments, group.replacement)
        self.report.records_removed += group.records_removed
