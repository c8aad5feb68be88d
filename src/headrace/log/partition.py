"""One partition on disk: an append-only sequence of offsets, stored in segments.

    DIR/mark                         the end of the synced bytes, and the start offset
    DIR/<offset>.log                 batches as they were produced; the last file is the active one
    DIR/<offset>.index               written when a segment is sealed or the log is closed
    DIR/<offset>.state               producers, transactions and leader epochs up to that offset

Invariants:
- Offsets have no gaps from ``start_offset`` to ``end_offset``.
- Readers never see an offset at or above ``high_watermark``. With durability ``synced`` the high watermark is the end
  of the last successful sync. With durability ``os`` it is the end of the log.
- Readers of committed records stop at ``last_stable_offset``. Every transaction below it has ended.

If a write fails, the partition truncates the torn bytes. If the truncation fails too, the partition refuses writes
(``Tail``). A failed sync fences the partition until the broker restarts, because the page cache may then contain bytes
that never reach the disk. ``recovery`` repairs the files after a crash. ``deletion`` advances the start offset.

Everything runs in one thread, except ``SyncJob.run``, ``Deletion.run`` and pinned reads, which use only their own
arguments.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import NamedTuple

from headrace.errors import OffsetOutOfRange, PartitionFenced
from headrace.files import Buffer, Files
from headrace.log.archive_store import ArchiveLocation
from headrace.log.config import DEFAULT_LOG_CONFIG, LogConfig
from headrace.log.deletion import Deletion
from headrace.log.mark import Mark, SyncJob
from headrace.log.producers import OutOfOrderSequence, RememberedBatch
from headrace.log.recovery import RecoveryReport, recover
from headrace.log.segment import ReadableSegment, Segment, Tail
from headrace.log.state import StateFiles
from headrace.records import BatchHeader, Marker, build_marker, read_header

__all__ = ["Appended", "PartitionLog"]


class Appended(NamedTuple):
    base_offset: int
    last_offset: int
    duplicate: bool = False


class PartitionLog:
    def __init__(
        self,
        files: Files,
        directory: Path,
        *,
        config: LogConfig = DEFAULT_LOG_CONFIG,
        waits_for_sync: bool = True,
        leader_epoch: int = 0,
        now_ms: int = 0,
        archive_location: ArchiveLocation | None = None,
    ) -> None:
        interval = config.index_interval_bytes
        recovered = recover(files, directory, interval, now_ms, leader_epoch, archive_location)
        self.directory = directory
        self.config = config
        self.leader_epoch = leader_epoch
        self.waits_for_sync = waits_for_sync
        self.start_offset = recovered.start_offset
        self.end_offset = recovered.end_offset
        self.synced_offset = recovered.end_offset
        self.report: RecoveryReport = recovered.report
        self._side_files_offset = recovered.end_offset if recovered.report.is_clean else -1
        self.segments = recovered.segments
        self.producers = recovered.state.producers
        self.transactions = recovered.state.transactions
        self.watchers: set[Callable[[], None]] = set()
        self.compacting: threading.Event | None = None
        """Set while a compaction or a move to the archive runs. Setting the event stops it."""
        self.unfinished_swap = recovered.unfinished_swap
        """The reason why a decided swap of segments is unfinished, or ``None``. Until a broker start completes the
        swap, sealed segments are neither compacted nor archived.
        """
        self.deletions = 0
        """The number of deletions in progress."""
        self.changes = 0
        """The number of changes to the list of segments."""
        self.compacted = recovered.compacted
        self.archive = recovered.archive
        self._files = files
        self._mark_file = recovered.mark_file
        self._state = recovered.state
        self._state_files = StateFiles(files, directory, recovered.state_offsets)
        self._bases = [segment.base_offset for segment in recovered.segments]
        self._synced_segment = self.segments[-1].base_offset
        self._synced_position = self.segments[-1].size
        self._directory_changed = False
        self._job: SyncJob | None = None
        self._tail = Tail(files, directory, self.segments[-1])
        self.segments[-1].created_ms = now_ms

    @property
    def high_watermark(self) -> int:
        return self.synced_offset if self.waits_for_sync else self.end_offset

    @property
    def last_stable_offset(self) -> int:
        """The offset below which every transaction has ended durably."""
        high_watermark = self.high_watermark
        unstable = self.transactions.first_unstable(high_watermark)
        # A deletion may advance the start past the first offset of an open transaction.
        return high_watermark if unstable is None else max(min(unstable, high_watermark), self.start_offset)

    @property
    def size_bytes(self) -> int:
        return sum(segment.size for segment in self.segments)

    @property
    def files(self) -> Files:
        """The file system that stores the partition."""
        return self._files

    @property
    def active(self) -> Segment:
        return self.segments[-1]

    @property
    def is_synced(self) -> bool:
        return self.synced_offset >= self.end_offset

    @property
    def is_syncing(self) -> bool:
        return self._job is not None

    @property
    def fenced(self) -> str | None:
        """The reason why the partition refuses writes; ``None`` if it accepts them."""
        return self._tail.fenced

    @property
    def needs_restart(self) -> bool:
        """Whether the partition refuses writes until the broker restarts."""
        return self._tail.needs_restart

    def segment_at(self, offset: int) -> ReadableSegment | None:
        """Return the last segment that begins at or before ``offset``, on disk or in the archive."""
        at = bisect_right(self._bases, offset) - 1
        return self.segments[at] if at >= 0 else self.archive.find(offset)

    def all_segments(self) -> list[ReadableSegment]:
        """Return the archived segments and the local ones, in offset order."""
        return [*self.archive.segments, *self.segments]

    @property
    def local_start_offset(self) -> int:
        """The first offset that is on local disk. Lower offsets are in the archive."""
        return max(self.start_offset, self.segments[0].base_offset)

    def segment_after(self, segment: Segment) -> Segment | None:
        at = bisect_right(self._bases, segment.base_offset)
        return self.segments[at] if at < len(self.segments) else None

    def readable_size(self, segment: ReadableSegment) -> int:
        """Return how many bytes of the segment are below the high watermark."""
        if not self.waits_for_sync or segment.base_offset < self._synced_segment:
            return segment.size
        return self._synced_position if segment.base_offset == self._synced_segment else 0

    def end_of_epoch(self, epoch: int) -> tuple[int, int]:
        return self._state.epochs.end_of(epoch, self.leader_epoch, self.high_watermark)

    def check_range(self, offset: int) -> None:
        if not self.start_offset <= offset <= self.end_offset:
            raise OffsetOutOfRange(offset, self.start_offset, self.high_watermark)

    # Writing

    def append(
        self,
        batch: Buffer,
        header: BatchHeader,
        max_timestamp: int,
        now_ms: int,
        *,
        seen_ms: int | None = None,
        must_start_at_zero: bool = False,
    ) -> Appended:
        """Append one validated batch. The batch becomes durable with the next sync.

        ``seen_ms`` is the time at which the producer was last seen (default: ``now_ms``). If ``must_start_at_zero``, an
        unknown producer must begin with sequence 0. A batch that the producer repeats is not written again. Raises
        ``OutOfOrderSequence`` if the batch does not follow the producer's last batch.
        """
        has_producer = header.producer_id >= 0
        if has_producer:
            repeated = self._find_repeated(header, now_ms, must_start_at_zero=must_start_at_zero)
            if repeated is not None:
                return Appended(repeated.base_offset, repeated.last_offset, duplicate=True)
            self.transactions.check(header)
        try:
            appended = self._put(batch, header, max_timestamp, now_ms)
        except PartitionFenced:
            if has_producer:
                self.producers.await_resend(header, now_ms)
            raise
        if has_producer:
            seen_ms = now_ms if seen_ms is None else seen_ms
            # Record the transaction first: a producer with an open transaction is never forgotten.
            if header.is_transactional:
                self.transactions.note(header, appended.base_offset, seen_ms)
            self.producers.note(header, appended.base_offset, seen_ms)
        if not self.waits_for_sync:
            self._wake()
        return appended

    def append_marker(
        self, producer_id: int, epoch: int, marker: Marker, now_ms: int, *, seen_ms: int
    ) -> Appended | None:
        """End a producer's transaction, and refuse batches of its older epochs from now on. Returns ``None`` if the
        transaction has already ended.
        """
        producer = self.producers.find(producer_id)
        current_epoch = -1 if producer is None else producer.epoch
        if current_epoch > epoch or (current_epoch == epoch and producer_id not in self.transactions.open):
            return None
        batch = build_marker(producer_id, epoch, marker, seen_ms)
        header = read_header(batch)
        appended = self._put(batch, header, seen_ms, now_ms)
        self.producers.note_marker(header, marker.coordinator_epoch, seen_ms)
        self.transactions.end(producer_id, appended.base_offset, committed=marker.committed)
        if not self.waits_for_sync:
            self._wake()
        return appended

    def _put(self, batch: Buffer, header: BatchHeader, max_timestamp: int, now_ms: int) -> Appended:
        base_offset, size, tail = self.end_offset, header.size, self._tail
        if tail.is_full(size, base_offset, now_ms, self.config):
            self._roll(now_ms)
        position = tail.write(batch, header, base_offset, self.leader_epoch)
        active = tail.active
        end_offset = base_offset + header.last_offset_delta + 1
        active.dirty = True
        active.index.add(
            base_offset, end_offset, position, size, max_timestamp, self.config.index_interval_bytes
        )
        self.end_offset = end_offset
        if self._state.epochs.newest != self.leader_epoch:
            self._state.epochs.note(self.leader_epoch, base_offset)
        return Appended(base_offset, end_offset - 1)

    def _find_repeated(
        self, header: BatchHeader, now_ms: int, *, must_start_at_zero: bool
    ) -> RememberedBatch | None:
        try:
            return self.producers.check(header, must_start_at_zero=must_start_at_zero)
        except OutOfOrderSequence as error:
            if self.producers.follows_refused_batch(header, now_ms):
                raise PartitionFenced(
                    f"nothing was written to {self.directory}: producer {header.producer_id} must first resend the "
                    "previous batch, whose write failed"
                ) from error
            raise

    def roll(self, now_ms: int) -> None:
        """Begin a new segment now, unless the active segment is empty."""
        if self.active.size:
            self._roll(now_ms)

    def _roll(self, now_ms: int) -> None:
        """Seal the active segment and begin the next one."""
        sealed = self.active
        new_segment = self._tail.roll(self.end_offset, now_ms)
        self._directory_changed = True
        self.changes += 1
        self.segments.append(new_segment)
        self._bases.append(new_segment.base_offset)
        self._write_side_files(sealed)

    def _write_side_files(self, segment: Segment) -> None:
        """Write the index and the state. A failure is ignored: a broker start can rebuild both from the log."""
        try:
            segment.write_index()
            self.write_state()
        except OSError:
            return

    def write_state(self) -> None:
        self._state.offset = self.end_offset
        self._state_files.write(self._state, self.synced_offset)

    # Syncing

    def begin_sync(self) -> SyncJob | None:
        """Return a job that syncs all appended batches.

        Returns ``None`` if everything is synced, a sync is running, or the partition is fenced until a restart.
        """
        if self._job is not None or self.is_synced or self.needs_restart:
            return None
        dirty = [segment for segment in self.segments if segment.dirty]
        for segment in dirty:
            segment.dirty = False
            segment.pin()
        active = self.active
        self._job = SyncJob(
            files=self._files,
            directory=self.directory if self._directory_changed else None,
            segments=dirty,
            mark_file=self._mark_file,
            mark=Mark(self.start_offset, self.end_offset, active.base_offset, active.size),
        )
        self._directory_changed = False
        return self._job

    def end_sync(self, job: SyncJob, error: OSError | None) -> None:
        """Apply the result of the job: advance the high watermark, or fence the partition until a restart."""
        assert job is self._job
        self._job = None
        for segment in job.segments:
            segment.unpin()
        if error is not None:
            self._tail.fence_until_restart(f"{self.directory}: sync failed: {error}")
        elif job.mark.segment >= self._synced_segment:
            self.synced_offset = job.mark.synced_offset
            self._synced_segment = job.mark.segment
            self._synced_position = job.mark.position
        self._wake()

    def fence_until_restart(self, reason: str) -> None:
        """Refuse writes until the broker restarts, and raise ``PartitionFenced`` with the reason."""
        self._tail.fence_until_restart(f"{self.directory}: {reason}")
        self._wake()
        self._tail.repair()

    def _wake(self) -> None:
        for watcher in tuple(self.watchers):
            watcher()

    def sync_now(self) -> None:
        """Sync in the calling thread: for broker start, broker stop and tests."""
        job = self.begin_sync()
        if job is None:
            return
        try:
            job.run()
        except OSError as error:
            self.end_sync(job, error)
            raise
        self.end_sync(job, None)

    def sync_mark(self) -> None:
        """Make the newest mark durable. Until then, a crash restores an older mark, which is true but covers less."""
        if self._mark_file.unsynced:
            self._mark_file.sync()

    # Compaction

    @property
    def synced_mark(self) -> Mark:
        return Mark(self.start_offset, self.synced_offset, self._synced_segment, self._synced_position)

    @property
    def tombstone_horizon(self) -> int:
        """A reader that resumes below this offset may have missed a tombstone, and must read again from the start."""
        return self.compacted.tombstones_removed_below

    def write_mark_to_both_slots(self, mark: Mark) -> None:
        """Update both slots of the mark file durably, to at least this mark. Any thread may call this."""
        self._mark_file.settle(mark)

    def forget_aborted(self, markers: Collection[int]) -> None:
        """Forget the aborted transactions with these marker offsets. Compaction is about to remove the markers, and
        has already removed the records.
        """
        self.transactions.forget(markers)
        self._state.offset = self.end_offset
        self._state_files.replace_all(self._state)
        self._files.sync_dir(self.directory)

    def adopt(self, old: Sequence[Segment], new: Segment) -> None:
        """Replace adjacent segments with one new segment. A reader that has pinned an old segment can continue."""
        self.changes += 1
        at = self.segments.index(old[0])
        assert self.segments[at : at + len(old)] == list(old)
        self.segments[at : at + len(old)] = [new]
        self._bases[at : at + len(old)] = [new.base_offset]
        for segment in old:
            segment.close()

    def remove_segment(self, segment: Segment) -> None:
        """Remove the first segment from the list, after it was archived or deleted. The caller removes its files."""
        assert self.segments[0] is segment
        self.changes += 1
        del self.segments[0], self._bases[0]
        segment.close()

    # Deletion at the start of the log

    def delete_before(self, offset: int) -> int:
        """Delete everything below ``offset`` durably, in the calling thread; returns the new start offset.

        For broker starts and for files in memory. While the broker runs, ``Committer.delete_before`` uses a thread.
        """
        deletion = Deletion.begin(self, offset)
        if deletion is None:
            return self.start_offset
        deletion.run()
        return deletion.end()

    def move_start(self, mark: Mark) -> None:
        """Apply the start offset of a durable mark, unless another deletion has advanced the start farther."""
        if mark.start_offset <= self.start_offset:
            return
        self.start_offset = mark.start_offset
        if mark.segment > self._synced_segment:
            self.synced_offset = max(self.synced_offset, mark.synced_offset)
            self._synced_segment, self._synced_position = mark.segment, mark.position
        self._state.epochs.truncate(mark.start_offset, self.end_offset)
        self.transactions.forget_below(mark.start_offset)

    def has_state_from(self, offset: int) -> bool:
        """Whether a state snapshot at or after ``offset`` survives a power loss, once the directory is synced."""
        return self._state_files.has_snapshot_between(offset, self.high_watermark)

    def newest_state(self, end_offset: int) -> tuple[int, int] | None:
        """Return the number and the offset of the newest state snapshot at or below ``end_offset``. The number
        increases with every snapshot that is written.
        """
        return self._state_files.newest(end_offset)

    def close(self) -> None:
        """Make everything durable, so that the next start need not scan segments; then close the files."""
        if self.fenced is None and not self.is_synced:
            self.sync_now()
        if self.fenced is None:
            if self._side_files_offset != self.end_offset:
                self._write_side_files(self.active)
                self._files.sync_dir(self.directory)
            self.sync_mark()
        for segment in self.segments:
            segment.close()
        self._mark_file.close()

    def abandon(self, reason: str) -> None:
        """Close the files without a sync, because they will be removed. The log then refuses writes."""
        self._tail.fence_until_restart(reason)
        for segment in self.segments:
            segment.close_permanently()
        self._mark_file.close()
        self._wake()
