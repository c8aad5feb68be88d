"""Advances the start offset of a partition's log: deletes the records below it, and removes whole segments. The synced
mark (``mark``), a file with two slots, has the start offset.

    begin     event loop    choose the new mark, and ensure that a state snapshot covers the producers in the files
    run       a thread      write the mark durably, in both slots
    end       event loop    publish the new start to readers, then remove the files

Invariant: a file is removed only when both slots of the mark have the new start. One slot would be enough to survive a
power loss, which tears at most the slot being written. But one slot is not enough if that slot is damaged later. The
broker would then start from the older slot, miss the first files of the log, and treat the other files as never
acknowledged.

If the broker crashes before the first slot is durable, nothing is deleted. If the broker crashes later, the next start
removes the files. While ``run`` is in its thread, the log continues to accept appends, syncs and other deletions. Their
marks are merged, so none of them reverts another.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from headrace.log.mark import Mark

if TYPE_CHECKING:
    from headrace.log.partition import PartitionLog

__all__ = ["Deletion", "may_remove_below"]


@dataclass(slots=True)
class Deletion:
    log: PartitionLog
    mark: Mark
    boundary: int
    """The base offset of the first file that remains."""
    needs_state: bool
    removes_files: bool
    _mark_error: OSError | None = None
    _dir_sync_error: OSError | None = None

    @classmethod
    def begin(cls, log: PartitionLog, offset: int) -> Deletion | None:
        """Begin a deletion; returns ``None`` if the log already begins at ``offset`` or later. Otherwise the caller
        must call ``run`` and then ``end``.
        """
        offset = min(offset, log.high_watermark)
        if offset <= log.start_offset:
            return None
        first = log.segment_at(max(offset, log.segments[0].base_offset))
        assert first is not None
        boundary, synced = first.base_offset, log.synced_mark
        mark = Mark(offset, synced.synced_offset, synced.segment, synced.position)
        if boundary > synced.segment:
            # With durability "os", the file in which the synced bytes end may be among the removed files. The mark then
            # points to the beginning of the first file that remains.
            mark = Mark(offset, max(synced.synced_offset, boundary), boundary, 0)
        needs_state = _needs_state(log, boundary)
        removes_files = log.compacting is None and (not needs_state or _has_state(log, boundary))
        log.deletions += 1
        return cls(log, mark, boundary, needs_state, removes_files)

    def run(self) -> None:
        """Write the mark. ``end`` raises a disk error that occurs here."""
        try:
            self.log.write_mark_to_both_slots(self.mark)
        except OSError as error:
            self._mark_error = error
            return
        if self.removes_files and self.needs_state:
            try:
                self.log.files.sync_dir(self.log.directory)
            except OSError as error:
                self._dir_sync_error = error

    def end(self) -> int:
        """Return the new start offset, or raise the disk error of ``run``. If the write of the mark failed, nothing
        changes.
        """
        log = self.log
        log.deletions -= 1
        if self._mark_error is not None:
            raise self._mark_error
        log.move_start(self.mark)
        if self._dir_sync_error is not None:
            log.fence_until_restart(f"sync failed: {self._dir_sync_error}")
        # Choose the segments again, because a compaction may have replaced some of them meanwhile.
        if (
            self.removes_files
            and log.compacting is None
            and (not self.needs_state or log.has_state_from(self.boundary))
        ):
            while len(log.segments) > 1 and log.segments[1].base_offset <= self.boundary:
                segment = log.segments[0]
                log.remove_segment(segment)
                segment.remove_files()
        return log.start_offset


def may_remove_below(log: PartitionLog, offset: int) -> bool:
    """Whether the files below ``offset`` can be removed without losing the state of producers and transactions, even
    after a power loss. If not, the files remain until the next deletion or start.
    """
    if not _needs_state(log, offset):
        return True
    if not _has_state(log, offset):
        return False
    try:
        log.files.sync_dir(log.directory)
    except OSError as error:
        log.fence_until_restart(f"sync failed: {error}")
    return True


def _needs_state(log: PartitionLog, offset: int) -> bool:
    """Whether the files below ``offset`` may contain batches of producers or transactions."""
    return bool(len(log.producers) or not log.transactions.is_empty) and log.segments[0].base_offset != offset


def _has_state(log: PartitionLog, offset: int) -> bool:
    """Return whether a state snapshot covers the files below ``offset``. If none does, try to write one first."""
    return log.has_state_from(offset) or (
        log.high_watermark >= log.end_offset and _make_room_for_state(log, offset)
    )


def _make_room_for_state(log: PartitionLog, offset: int) -> bool:
    """Write a state snapshot. If that fails, remove the indexes of the files to be deleted, and retry."""
    try:
        log.write_state()
    except OSError:
        for segment in log.segments[:-1]:
            if segment.end_offset <= offset and log.files.exists(segment.index_path):
                segment.ensure_columns(log.config.index_interval_bytes)
                log.files.remove(segment.index_path)
        try:
            log.write_state()
        except OSError:
            return False
    return True
