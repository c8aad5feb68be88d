"""Moves old segments of one partition to the archive.

begin     event loop    choose the segments, and ensure that a state snapshot covers their producers
copy      a thread      copy one segment completely and durably, then add it durably to the list ``archived``
adopt     event loop    new readers use the copy; a reader that has the local file open continues with it
remove    a thread      remove the local files of the segment
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from headrace.log.archive import Archive
from headrace.log.archived_segment import Entry
from headrace.log.deletion import may_remove_below
from headrace.log.mark import Mark
from headrace.log.pace import Pace
from headrace.log.partition import PartitionLog
from headrace.log.segment import Segment

__all__ = ["ArchiveMove"]


@dataclass(slots=True)
class ArchiveMove:
    log: PartitionLog
    archive: Archive
    segments: list[Segment]
    mark: Mark
    pace: Pace
    stop: threading.Event
    _entries: list[Entry] = field(default_factory=list)
    has_begun: bool = False
    """Whether the archive responded and copying has started."""

    @classmethod
    def begin(
        cls, log: PartitionLog, segments: Sequence[Segment], pace: Callable[[threading.Event], Pace]
    ) -> ArchiveMove | None:
        """Begin a move; returns ``None`` if nothing can be moved now. Otherwise the caller must call ``end`` later."""
        archive, mark = log.archive, log.synced_mark
        movable = [segment for segment in segments if segment.end_offset <= mark.segment]
        # With an unfinished swap, the next start still replaces local segments, so they must not be archived.
        if not movable or log.compacting is not None or log.unfinished_swap is not None:
            return None
        if not may_remove_below(log, movable[-1].end_offset):
            return None
        stop = threading.Event()
        log.compacting = stop
        for segment in movable:
            segment.pin()
        return cls(log, archive, movable, mark, pace(stop), stop)

    def end(self) -> None:
        """End the move. A thread that is still copying makes no further changes after this."""
        self.archive.interrupt(self.stop)
        for segment in self.segments:
            segment.unpin()
        self.log.compacting = None

    def copy(self) -> None:
        """Copy one segment and list it as archived. Each call copies only one segment, so that a stop need not wait
        long, and completed copies are not repeated.
        """
        if not self.has_begun:
            self.archive.check(self.stop)
            self.has_begun = True
        entry = self.archive.copy(self.segments[0], self.pace, self.stop)
        with self.archive.change_lock(self.stop):
            self.log.write_mark_to_both_slots(self.mark)
            self._entries = self.archive.append_entry(entry)

    def adopt(self) -> Segment:
        """Switch readers to the copy; returns the segment whose local files can be removed."""
        moved = self.segments[0]
        self.archive.adopt(self._entries)
        self.log.remove_segment(moved)
        self.segments = self.segments[1:]
        moved.unpin()
        return moved
