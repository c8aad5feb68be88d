"""Moving old segments of one partition to the archive: copied in a thread, then taken out of the partition's own files.

begin     event loop    choose the segments, and see that producers are remembered without them
copy      a thread      copies, whole and durable in the archive
name      a thread      the list of what is archived names them, durably: from here on the copies count
adopt     event loop    readers go to the copies; who holds an old file reads on in it
remove    a thread      the partition's own files go
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

__all__ = ["Archiving"]


@dataclass(slots=True)
class Archiving:
    log: PartitionLog
    archive: Archive
    segments: list[Segment]
    mark: Mark
    pace: Pace
    stop: threading.Event
    _entries: list[Entry] = field(default_factory=list)
    has_begun: bool = False
    """Whether the archive has answered, and bytes are copied to it."""

    @classmethod
    def begin(
        cls, log: PartitionLog, segments: Sequence[Segment], pace: Callable[[threading.Event], Pace]
    ) -> Archiving | None:
        """``None`` if there is nothing that may go now; else ``end`` must follow."""
        archive, mark = log.archive, log.synced_mark
        movable = [segment for segment in segments if segment.end_offset <= mark.segment]
        # A swap that the next start finishes covers whole segments: none of them may be in the archive by then.
        if not movable or log.compacting is not None or log.unsettled is not None:
            return None
        if not may_remove_below(log, movable[-1].end_offset):
            return None
        stop = threading.Event()
        log.compacting = stop
        for segment in movable:
            segment.pin()
        return cls(log, archive, movable, mark, pace(stop), stop)

    def end(self) -> None:
        """Also where a thread is still at it: it decides nothing any more."""
        self.archive.interrupt(self.stop)
        for segment in self.segments:
            segment.unpin()
        self.log.compacting = None

    def copy(self) -> None:
        """One at a time, so that a stop does not wait long, and what is done is not done again."""
        if not self.has_begun:
            self.archive.check(self.stop)
            self.has_begun = True
        entry = self.archive.copy(self.segments[0], self.pace, self.stop)
        with self.archive.deciding(self.stop):
            self.log.settle_mark(self.mark)
            self._entries = self.archive.name(entry)

    def adopt(self) -> Segment:
        """The segment whose own files can go."""
        moved = self.segments[0]
        self.archive.adopt(self._entries)
        self.log.let_go_of(moved)
        self.segments = self.segments[1:]
        moved.unpin()
        return moved
