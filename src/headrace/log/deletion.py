"""Moving the start of a partition's log: what lies below an offset is given up, and whole segments below it go.

    begin     event loop    what the mark is to say, and whether producers are remembered without the files
    run       a thread      the mark says it durably, in both slots
    end       event loop    readers see the new start; then the files go

Invariant: no file goes that a slot of the mark may still lead to. One slot would do for a power loss, because that
tears at most the slot being written, and the other one is then the one that a sync has covered. It would not do where
that slot is damaged later. The start would then go by the older one, find a log that lacks its first files, and take
what is left for something that was never promised. So both slots have to say it, whichever of them is read.

A crash before the first slot is durable leaves everything as it was; behind it, the deletion counts, and the next start
removes the files. While a deletion is in its thread, the log goes on: what is synced meanwhile and what other deletions
say is joined in the mark, and none takes the other's word back.
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
    """Where the first file that stays begins."""
    needs_state: bool
    removes: bool
    _mark_error: OSError | None = None
    _names_error: OSError | None = None

    @classmethod
    def begin(cls, log: PartitionLog, offset: int) -> Deletion | None:
        """``None`` if the log begins there already; else ``run`` and ``end`` must follow."""
        offset = min(offset, log.high_watermark)
        if offset <= log.start_offset:
            return None
        first = log.segment_at(max(offset, log.segments[0].base_offset))
        assert first is not None
        boundary, synced = first.base_offset, log.synced_mark
        mark = Mark(offset, synced.synced_offset, synced.segment, synced.position)
        if boundary > synced.segment:
            # The file in which the synced bytes end is about to go. With durability "os" that can be one which no
            # sync has reached yet. From the beginning of the first file that stays, all below is deleted.
            mark = Mark(offset, max(synced.synced_offset, boundary), boundary, 0)
        needs_state = _needs_state(log, boundary)
        removes = log.compacting is None and (not needs_state or _has_state(log, boundary))
        log.deletions += 1
        return cls(log, mark, boundary, needs_state, removes)

    def run(self) -> None:
        """Wait for the disk. What it refuses is said by ``end``."""
        try:
            self.log.settle_mark(self.mark)
        except OSError as error:
            self._mark_error = error
            return
        if self.removes and self.needs_state:
            try:
                self.log.files.sync_dir(self.log.directory)
            except OSError as error:
                self._names_error = error

    def end(self) -> int:
        """The new start; raises what the disk said. Where that was about the mark, nothing has moved."""
        log = self.log
        log.deletions -= 1
        if self._mark_error is not None:
            raise self._mark_error
        log.move_start(self.mark)
        if self._names_error is not None:
            log.lose(f"sync failed: {self._names_error}")
        # Looked at again, because a compaction may have come between.
        if (
            self.removes
            and log.compacting is None
            and (not self.needs_state or log.has_state_in(self.boundary))
        ):
            while len(log.segments) > 1 and log.segments[1].base_offset <= self.boundary:
                segment = log.segments[0]
                log.let_go_of(segment)
                segment.remove_files()
        return log.start_offset


def may_remove_below(log: PartitionLog, offset: int) -> bool:
    """Whether producers and transactions would be remembered without the batches below ``offset``, also after a power
    loss: what is sent again must be known, and what is aborted. If not, the files stay until the next deletion or
    start.
    """
    if not _needs_state(log, offset):
        return True
    if not _has_state(log, offset):
        return False
    try:
        log.files.sync_dir(log.directory)
    except OSError as error:
        log.lose(f"sync failed: {error}")
    return True


def _needs_state(log: PartitionLog, offset: int) -> bool:
    """Whether the files below ``offset`` may know of producers or transactions."""
    return bool(len(log.producers) or not log.transactions.is_empty) and log.segments[0].base_offset != offset


def _has_state(log: PartitionLog, offset: int) -> bool:
    """Whether a state stands in for the files below ``offset``; one is written if it can be."""
    return log.has_state_in(offset) or (
        log.high_watermark >= log.end_offset and _make_room_for_state(log, offset)
    )


def _make_room_for_state(log: PartitionLog, offset: int) -> bool:
    """Write a state. Where the disk is full, which deletions are to change, the indexes of what goes make room."""
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
