"""Compaction of one partition: retains only the newest record of each key, in the segments that may be compacted.

``due`` chooses these segments and decides whether a compaction is worthwhile. It excludes the active segment,
everything at or above the last stable offset, everything above the synced mark (``mark``), and segments with a record
younger than ``min.compaction.lag.ms``.

    begin             event loop    pin the segments, and copy the state of producers and transactions
    read_keys         a thread      map each key of the new records to its newest offset
    next_group        a thread      write the remaining records of a few segments to a new file, and sync it
    forget_markers    event loop    forget aborted transactions whose markers are removed
    commit            a thread      make the swap durable: every later start uses the new file
    adopt             event loop    rename the new file and replace the segments; current readers use the old files
    remove_replaced   a thread      remove the old files, then the swap file
    finish            a thread      save the progress

Memory is bounded by the map of keys, one batch and two buffers. When the map is full, the compaction covers only the
records up to that point. The next compaction continues there. A damaged batch stops the compaction, so that no record
next to damage is removed. An interrupted or killed compaction leaves either the old segments or the new file
(see ``swap``). A later compaction covers the same records.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

from headrace.errors import CorruptBatch
from headrace.files import Files
from headrace.log.cleaner import Cleaner, KnownProducers
from headrace.log.compacted import Compacted, CompactedFile
from headrace.log.key_map import KeyMap
from headrace.log.mark import Mark
from headrace.log.pace import Interrupted, Pace
from headrace.log.partition import PartitionLog
from headrace.log.segment import Segment
from headrace.log.swap import Swap
from headrace.log.transactions import TransactionScan
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
    """Segments that may be compacted, oldest first. Records from ``dirty_offset`` on were never compacted."""

    segments: tuple[Segment, ...]
    dirty_offset: int
    reason: str


@dataclass(slots=True)
class Group:
    """Adjacent segments that are merged into one file."""

    segments: list[Segment]
    swap: Swap
    replacement: Segment
    markers_removed: list[int]
    records_removed: int
    has_changes: bool


@dataclass(slots=True)
class CompactionReport:
    """The result of a compaction, with the total segment sizes ``bytes_before`` and ``bytes_after``.

    ``bytes_read`` is larger than ``bytes_before``, because the keys are read first. ``bytes_written`` includes new
    files that were not used.
    """

    bytes_before: int = 0
    bytes_after: int = 0
    bytes_read: int = 0
    bytes_written: int = 0
    records_removed: int = 0
    keys: int = 0
    clean_offset: int = 0


def due(log: PartitionLog, trusted_ms: int) -> Due | None:
    """Return the segments to compact now; ``None`` if a compaction is impossible or not worthwhile."""
    config = log.config
    if not config.is_compacted or log.fenced is not None:
        return None
    if log.compacting is not None or log.unfinished_swap is not None:
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
    """Whether the active segment has records older than ``max.compaction.lag.ms``, and so must be sealed."""
    config = log.config
    if not config.is_compacted or log.fenced is not None or not log.active.size:
        return False
    age_ms = trusted_ms - min(log.active.created_ms, _first_timestamp(log.active))
    return age_ms >= config.max_compaction_lag_ms


def _is_young(segment: Segment, trusted_ms: int, lag_ms: int) -> bool:
    return lag_ms > 0 and segment.index.max_timestamp > trusted_ms - lag_ms


def _first_timestamp(segment: Segment) -> int:
    """Return the timestamp of the segment's first batch; if that is unknown, the creation time of the segment."""
    try:
        header = read_header(segment.file.pread(HEADER_SIZE, 0))
    except RecordError:
        return segment.created_ms
    timestamp = header.max_timestamp if header.has_delete_horizon else header.base_timestamp
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
    dirty_scan: TransactionScan
    report: CompactionReport = field(default_factory=CompactionReport)
    has_unfinished_swap: bool = False
    """Whether the swap file of an unfinished swap may exist. Only the next broker start can finish it."""
    _done: int = 0

    @classmethod
    def begin(
        cls,
        log: PartitionLog,
        due_segments: Due,
        files: Files,
        *,
        limits: RecordLimits,
        now_ms: int,
        memory_bytes: int,
        pace: Callable[[threading.Event], Pace],
    ) -> Compaction:
        """Pin the segments. The caller must always call ``end``, which unpins them."""
        stop = threading.Event()
        end_offset = due_segments.segments[-1].end_offset
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
            due_segments.dirty_offset,
            now_ms,
            log.config.delete_retention_ms,
            limits,
            TransactionScan(log.transactions.aborted_between(log.segments[0].base_offset, end_offset)),
            KnownProducers(last_batches, epochs),
            tombstones_removed_below=log.compacted.tombstones_removed_below,
        )
        log.compacting = stop
        for segment in due_segments.segments:
            segment.pin()
        return cls(
            log=log,
            files=files,
            limits=limits,
            now_ms=now_ms,
            segments=due_segments.segments,
            dirty_offset=due_segments.dirty_offset,
            end_offset=end_offset,
            mark=log.synced_mark,
            keys=keys,
            pace=pace(stop),
            stop=stop,
            cleaner=cleaner,
            dirty_scan=TransactionScan(
                log.transactions.aborted_between(due_segments.dirty_offset, end_offset)
            ),
        )

    def end(self) -> None:
        for segment in self.segments:
            segment.unpin()
        self.log.compacting = None
        if self.has_unfinished_swap:
            self.log.unfinished_swap = "a compaction was decided but did not finish"

    # In a thread

    def read_keys(self) -> None:
        """Add the keys of the new records to the map, until the map is full."""
        for segment in self.segments:
            if segment.end_offset <= self.dirty_offset:
                continue
            for header, batch in self._batches(segment):
                if header.base_offset < self.dirty_offset:
                    continue
                if not self.keys.has_room_for(header.count) and self.cleaner.map_end > self.dirty_offset:
                    return
                if header.is_control:
                    self.dirty_scan.is_unneeded_marker(batch, header)
                elif not self.dirty_scan.is_aborted(header):
                    self.keys.note(open_batch(batch, self.limits).records, header.base_offset)
                self.cleaner.map_end = header.next_offset

    def next_group(self) -> Group | None:
        """Write the next few segments to one new file; ``None`` if no segment that the map covers remains."""
        while self._done < len(self.segments):
            first = self.segments[self._done]
            if first.base_offset >= self.cleaner.map_end:
                return None
            group = self._write_group(first)
            self._done += len(group.segments)
            self.report.bytes_before += sum(segment.size for segment in group.segments)
            self.report.bytes_after += group.swap.size
            if group.has_changes:
                return group
            group.swap.discard(self.files)
        return None

    def _write_group(self, first: Segment) -> Group:
        cleaner, config = self.cleaner, self.log.config
        removed_before, horizons_before, markers_before = (
            cleaner.removed_records,
            cleaner.horizons_set,
            len(cleaner.markers_removed),
        )
        file = CompactedFile(self.files, self.log.directory, first.base_offset, config.index_interval_bytes)
        segments: list[Segment] = []
        newest_ms = -1
        try:
            for segment in self.segments[self._done :]:
                if segments and not self._fits_into_group(segment, first, file.size):
                    break
                for header, batch in self._batches(segment):
                    newest_ms = max(newest_ms, header.max_timestamp)
                    cleaned = cleaner.clean(batch)
                    if cleaned is not None:
                        self.pace.throttle(len(cleaned.data))
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
        removed = cleaner.removed_records - removed_before
        return Group(
            segments,
            swap,
            Segment(self.files, self.log.directory, first.base_offset, file.index),
            cleaner.markers_removed[markers_before:],
            removed,
            has_changes=len(segments) > 1 or removed > 0 or cleaner.horizons_set > horizons_before,
        )

    def _fits_into_group(self, segment: Segment, first: Segment, size: int) -> bool:
        """Whether to add another segment to the file. It is unknown how much of the segment will remain, so the file
        can become up to 1.5 times as large as ``segment.bytes``.
        """
        if (
            segment.base_offset >= self.cleaner.map_end
            or segment.end_offset - first.base_offset > _OFFSETS_MAX
        ):
            return False
        limit = self.log.config.segment_bytes
        return size < limit // 2 or size + segment.size <= limit

    def commit(self, group: Group) -> None:
        """Make the swap durable: after this, every start uses the new file. If this fails, ``has_unfinished_swap`` says
        whether the swap may still be durable.
        """
        try:
            self._check_stop()
            saved = self.log.compacted
            if self.cleaner.tombstones_removed_below > saved.tombstones_removed_below:
                # Save this before tombstones are removed, so that a reader that resumes can detect the removal.
                self._save_progress(
                    replace(saved, tombstones_removed_below=self.cleaner.tombstones_removed_below)
                )
            # Write both slots of the mark, so that neither refers to a segment file that will be removed.
            self.log.write_mark_to_both_slots(self.mark)
            self.has_unfinished_swap = True
            group.swap.commit(self.files)
        except (OSError, Interrupted):
            self.has_unfinished_swap = self.has_unfinished_swap and self.files.exists(group.swap.path)
            if not self.has_unfinished_swap:
                group.swap.discard(self.files)
            raise

    def remove_replaced(self, group: Group) -> None:
        group.swap.remove_replaced(self.files, [segment.base_offset for segment in group.segments[1:]])
        self.has_unfinished_swap = False

    def finish(self) -> CompactionReport:
        cleaner, report = self.cleaner, self.report
        self._save_progress(
            Compacted(cleaner.map_end, cleaner.tombstones_removed_below, cleaner.next_horizon_ms)
        )
        report.keys = len(self.keys)
        report.clean_offset = cleaner.map_end
        return report

    def _save_progress(self, compacted: Compacted) -> None:
        if compacted != self.log.compacted:
            compacted.write(self.files, self.log.directory)
            self.log.compacted = compacted

    def _batches(self, segment: Segment) -> Iterator[tuple[BatchHeader, memoryview]]:
        """Yield every batch of a segment; raises ``CorruptBatch`` at the first invalid batch."""
        position, offset = 0, segment.base_offset
        chunk, chunk_at = memoryview(b""), 0
        while position < segment.size:
            self._check_stop()
            self.pace.pause_if_due()
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
                raise CorruptBatch(segment.path, position, "its header is invalid")
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
        self.pace.throttle(len(data))
        return memoryview(data)

    def _check_stop(self) -> None:
        if self.stop.is_set():
            raise Interrupted

    # In the event loop

    def forget_markers(self, group: Group) -> None:
        """Forget the aborted transactions whose markers are removed. Call this before ``commit``: readers of committed
        records must not wait for a removed marker.
        """
        if group.markers_removed:
            self.log.forget_aborted(group.markers_removed)

    def adopt(self, group: Group) -> None:
        group.swap.rename(self.files)
        self.log.adopt(group.segments, group.replacement)
        self.report.records_removed += group.records_removed
