"""One partition on disk: an append-only run of offsets, kept in segments.

    DIR/mark                         how far everything is synced, and where reading starts
    DIR/<offset>.log                 batches as they came, the last file being the one written to
    DIR/<offset>.index               made when a file is sealed or the log is closed
    DIR/<offset>.state               producers, transactions and epochs up to that offset

Invariants: offsets are dense from ``start_offset`` to ``end_offset``; readers see nothing at or above
``high_watermark``; with durability ``synced`` the high watermark is what a sync that returned has covered,
with ``os`` it is the end. Readers of committed records stop at ``last_stable_offset``, which no open transaction
lies below.

A write that fails is cut off again, and where even that fails the partition takes no more (``tail``). A sync that
fails fences the partition until the broker is started anew: after it the page cache may hold bytes that the disk
will never get. What a crash leaves is settled by ``recovery``; how the other end moves is in ``deletion``.

Everything here runs in one thread, but for ``SyncJob.run``, ``Deletion.run`` and pinned reads, which touch only
what they were given.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import NamedTuple

from headrace.errors import OffsetOutOfRange, PartitionFenced
from headrace.files import Buffer, Files
from headrace.log.archive_store import ArchivePlace
from headrace.log.config import DEFAULT_LOG_CONFIG, LogConfig
from headrace.log.deletion import Deletion
from headrace.log.mark import Mark
from headrace.log.producers import OutOfOrderSequence, RememberedBatch
from headrace.log.recovery import RecoveryReport, recover
from headrace.log.segment import ReadableSegment, Segment
from headrace.log.state_files import StateFiles
from headrace.log.sync import SyncJob
from headrace.log.tail import Tail
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
        archive_place: ArchivePlace | None = None,
    ) -> None:
        found = recover(files, directory, config.index_interval_bytes, now_ms, archive_place)
        self.directory = directory
        self.config = config
        self.leader_epoch = leader_epoch
        self.waits_for_sync = waits_for_sync
        self.start_offset = found.start_offset
        self.end_offset = found.end_offset
        self.synced_offset = found.end_offset
        self.report: RecoveryReport = found.report
        self._settled_at = found.end_offset if found.report.is_clean else -1
        self.segments = found.segments
        self.producers = found.state.producers
        self.transactions = found.state.transactions
        self.watchers: set[Callable[[], None]] = set()
        self.compacting: threading.Event | None = None
        """While a compaction is under way: set it, and it ends soon."""
        self.unsettled = found.unsettled
        """Why a swap of segments that may be decided is not finished: until a start does it, the files below the one
        that is written to are neither compacted nor archived.
        """
        self.deletions = 0
        """How many are under way."""
        self.changes = 0
        """How often the list of segments has changed."""
        self.compacted = found.compacted
        self.archive = found.archive
        self._files = files
        self._mark_file = found.mark_file
        self._state = found.state
        self._state_files = StateFiles(files, directory, found.state_offsets)
        self._bases = [segment.base_offset for segment in found.segments]
        self._synced_segment = self.segments[-1].base_offset
        self._synced_position = self.segments[-1].size
        self._directory_changed = False
        self._job: SyncJob | None = None
        self._tail = Tail(files, directory, self.segments[-1])
        self.segments[-1].created_ms = now_ms

    # What there is

    @property
    def high_watermark(self) -> int:
        return self.synced_offset if self.waits_for_sync else self.end_offset

    @property
    def last_stable_offset(self) -> int:
        """Below it, every transaction has ended, and its end is durable."""
        high_watermark = self.high_watermark
        unstable = self.transactions.first_unstable(high_watermark)
        # Deletion does not wait for a transaction to end.
        return high_watermark if unstable is None else max(min(unstable, high_watermark), self.start_offset)

    @property
    def size_bytes(self) -> int:
        return sum(segment.size for segment in self.segments)

    @property
    def files(self) -> Files:
        """What the partition's files are opened by."""
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
        """Why it takes no writes, if it does not."""
        return self._tail.fenced

    @property
    def is_lost(self) -> bool:
        """Fenced for good: only a new start can tell what the disk holds."""
        return self._tail.is_lost

    def segment_at(self, offset: int) -> ReadableSegment | None:
        """The segment whose range begins at or before ``offset``."""
        at = bisect_right(self._bases, offset) - 1
        return self.segments[at] if at >= 0 else self.archive.find(offset)

    def all_segments(self) -> list[ReadableSegment]:
        """Those in the archive as well."""
        return [*self.archive.segments, *self.segments]

    @property
    def local_start_offset(self) -> int:
        """Where the partition's own files begin; what is below is in the archive."""
        return max(self.start_offset, self.segments[0].base_offset)

    def segment_after(self, segment: Segment) -> Segment | None:
        at = bisect_right(self._bases, segment.base_offset)
        return self.segments[at] if at < len(self.segments) else None

    def readable_size(self, segment: ReadableSegment) -> int:
        """How many bytes of the segment lie below the high watermark."""
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
        begins_at_zero: bool = False,
    ) -> Appended:
        """Write one checked batch behind the last one. It is safe only once a sync has covered it.

        ``seen_ms`` is when the producer counts as last seen, if that is not ``now_ms``. ``begins_at_zero``: one that is
        not known here begins with sequence 0. A batch that its producer has sent before is not written again; raises
        where it does not follow the producer's last.
        """
        has_producer = header.producer_id >= 0
        if has_producer:
            earlier = self._earlier(header, now_ms, begins_at_zero=begins_at_zero)
            if earlier is not None:
                return Appended(earlier.base_offset, earlier.last_offset, duplicate=True)
            self.transactions.check(header)
        try:
            appended = self._put(batch, header, max_timestamp, now_ms)
        except PartitionFenced:
            if has_producer:
                self.producers.await_again(header, now_ms)
            raise
        if has_producer:
            seen_ms = now_ms if seen_ms is None else seen_ms
            # Before the producer, which is not forgotten while its transaction is open.
            if header.is_transactional:
                self.transactions.note(header, appended.base_offset, seen_ms)
            self.producers.note(header, appended.base_offset, seen_ms)
        if not self.waits_for_sync:
            self._wake()
        return appended

    def append_marker(
        self, producer_id: int, epoch: int, marker: Marker, now_ms: int, *, seen_ms: int
    ) -> Appended | None:
        """End a producer's transaction, or at least refuse its older epochs from now on; ``None`` if it is done."""
        producer = self.producers.find(producer_id)
        known = -1 if producer is None else producer.epoch
        if known > epoch or (known == epoch and producer_id not in self.transactions.open):
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
        self._state.epochs.note(self.leader_epoch, base_offset)
        return Appended(base_offset, end_offset - 1)

    def _earlier(self, header: BatchHeader, now_ms: int, *, begins_at_zero: bool) -> RememberedBatch | None:
        try:
            return self.producers.check(header, begins_at_zero=begins_at_zero)
        except OutOfOrderSequence as error:
            if self.producers.is_behind_refused(header, now_ms):
                raise PartitionFenced(
                    f"nothing was written to {self.directory}: producer {header.producer_id} has to send the batch "
                    "again that could not be written before this one"
                ) from error
            raise

    def roll(self, now_ms: int) -> None:
        """Begin a new segment now, unless the active one is still empty."""
        if self.active.size:
            self._roll(now_ms)

    def _roll(self, now_ms: int) -> None:
        """Seal the active segment and begin the next one."""
        sealed = self.active
        fresh = self._tail.roll(self.end_offset, now_ms)
        self._directory_changed = True
        self.changes += 1
        self.segments.append(fresh)
        self._bases.append(fresh.base_offset)
        self._write_side_files(sealed)

    def _write_side_files(self, segment: Segment) -> None:
        """Index and state, which a start can also make from the log: that they cannot be written is no reason
        to stop.
        """
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
        """A job that makes durable what was appended so far; ``None`` if there is nothing to do or one is
        under way.
        """
        if self._job is not None or self.is_synced or self.is_lost:
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
        """Take the job's result: move the high watermark, or fence the partition for good."""
        assert job is self._job
        self._job = None
        for segment in job.segments:
            segment.unpin()
        if error is not None:
            self._tail.lose(f"{self.directory}: sync failed: {error}")
        elif job.mark.segment >= self._synced_segment:
            self.synced_offset = job.mark.synced_offset
            self._synced_segment = job.mark.segment
            self._synced_position = job.mark.position
        self._wake()

    def lose(self, reason: str) -> None:
        """Take no more writes before the next start, and raise what says so."""
        self._tail.lose(f"{self.directory}: {reason}")
        self._wake()
        self._tail.mend()

    def _wake(self) -> None:
        for watcher in tuple(self.watchers):
            watcher()

    def sync_now(self) -> None:
        """Sync in the calling thread: for starts, stops and tests."""
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
        """Make the newest mark itself durable. Until then an older one stands in, which is true but says
        less.
        """
        if self._mark_file.unsynced:
            self._mark_file.sync()

    # Compaction

    @property
    def synced_mark(self) -> Mark:
        return Mark(self.start_offset, self.synced_offset, self._synced_segment, self._synced_position)

    @property
    def tombstone_horizon(self) -> int:
        """A reader that comes back to an offset below it may have missed a deletion, and must start anew."""
        return self.compacted.tombstones_removed_below

    def settle_mark(self, mark: Mark) -> None:
        """Let both slots of the mark say at least this, durably; in any thread."""
        self._mark_file.settle(mark)

    def forget_aborted(self, markers: Collection[int]) -> None:
        """Nothing is left of these aborted transactions but their markers, and those are about to go."""
        self.transactions.forget(markers)
        self._state.offset = self.end_offset
        self._state_files.write_alone(self._state)
        self._files.sync_dir(self.directory)

    def adopt(self, old: Sequence[Segment], new: Segment) -> None:
        """Let one segment take the place of several neighbours; whoever has pinned one of them reads on in it."""
        self.changes += 1
        at = self.segments.index(old[0])
        assert self.segments[at : at + len(old)] == list(old)
        self.segments[at : at + len(old)] = [new]
        self._bases[at : at + len(old)] = [new.base_offset]
        for segment in old:
            segment.close()

    def let_go_of(self, segment: Segment) -> None:
        """The first segment is no part of the log any more: archived or deleted. The caller sees to its files."""
        assert self.segments[0] is segment
        self.changes += 1
        del self.segments[0], self._bases[0]
        segment.close()

    # The log's other end

    def delete_before(self, offset: int) -> int:
        """Give up everything below ``offset``, durably, in the calling thread; returns the new start.

        For what waits for no disk. All else has a committer do it, which does not keep others waiting.
        """
        deletion = Deletion.begin(self, offset)
        if deletion is None:
            return self.start_offset
        deletion.run()
        return deletion.end()

    def move_start(self, mark: Mark) -> None:
        """The mark says durably that the log starts there; another deletion may have moved it farther."""
        if mark.start_offset <= self.start_offset:
            return
        self.start_offset = mark.start_offset
        if mark.segment > self._synced_segment:
            self.synced_offset = max(self.synced_offset, mark.synced_offset)
            self._synced_segment, self._synced_position = mark.segment, mark.position
        self._state.epochs.cut(mark.start_offset, self.end_offset)
        self.transactions.forget_below(mark.start_offset)

    def has_state_in(self, offset: int) -> bool:
        """Whether a state at or behind ``offset`` will be there after a power loss, if the directory is synced."""
        return self._state_files.has_one_in(offset, self.high_watermark)

    def newest_state(self, end_offset: int) -> tuple[int, int] | None:
        """Number and offset of the newest state that covers nothing behind ``end_offset``; with each that is written
        there is another number.
        """
        return self._state_files.newest(end_offset)

    def close(self) -> None:
        """Leave everything durable and ready for a start that reads no segment; then let go of the files."""
        if self.fenced is None and not self.is_synced:
            self.sync_now()
        if self.fenced is None:
            if self._settled_at != self.end_offset:
                self._write_side_files(self.active)
                self._files.sync_dir(self.directory)
            self.sync_mark()
        for segment in self.segments:
            segment.close()
        self._mark_file.close()

    def let_go(self, reason: str) -> None:
        """Close the files as they are, because they are about to be removed; takes no writes any more."""
        self._tail.lose(reason)
        for segment in self.segments:
            segment.give_up()
        self._mark_file.close()
        self._wake()
