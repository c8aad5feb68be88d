"""The plan of a restore point: the files and bytes to copy of each log.

Only code on the event loop changes logs, and the plans of all logs are created without an await in between. So together
the plans describe a state that a crash at that moment could have left on disk. For example, every committed offset is
at most the end offset of its log, and each transaction is either decided in the journal or open. A broker that starts
with the restored files recovers them as after a crash, without special code.

``plan_copy`` compares a log with its copy, without reading files. It pins the files to copy, so that compaction and
retention cannot remove them, and ``Plan.release`` unpins them. A backup includes the archived segments of a log. Most
of them were copied before they were archived. The copying thread opens the others, because the archive can be slow or
unavailable.

With durability ``synced``, the restore point ends at the last synced record. With durability ``os``, it ends at the
high watermark, as after kill -9. The plan then records how far the broker's own disk was synced, and after the next
start the backup compares the bytes beyond that position with the copy.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import takewhile
from typing import NamedTuple

from headrace.broker.backup.manifest import Part, Piece, SegmentCopy, StateCopy
from headrace.files import File
from headrace.log.archived_segment import ArchivedSegment, Entry
from headrace.log.compacted import Compacted
from headrace.log.mark import Mark
from headrace.log.partition import PartitionLog
from headrace.log.scan import ReadableFile
from headrace.log.segment import ReadableSegment, Segment
from headrace.log.state import state_name

__all__ = ["LogCopy", "Plan", "PlannedSegment", "Source", "missing_bytes", "plan_copy"]


class Source(NamedTuple):
    log_id: str
    log: PartitionLog


class _Signature(NamedTuple):
    """Identifies the state of a log. Two signatures are equal if a manifest would be the same for both states."""

    mark: Mark
    changes: int
    state: tuple[int, int] | None
    compacted: Compacted
    archived: tuple[int, Entry | None]


@dataclass(slots=True)
class LogCopy:
    """The copy of a log in the folder."""

    part: Part
    signature: _Signature | None = None
    segments: dict[int, ReadableSegment] = field(default_factory=dict)
    """The segment objects that this run copied, by base offset. Compaction creates a new object for a segment, so an
    object identifies its content.
    """
    state_version: tuple[int, int] | None = None
    missing_files: frozenset[str] = frozenset()
    """Files of the copy that are missing or truncated in the folder."""


@dataclass(slots=True)
class PlannedSegment:
    segment: ReadableSegment
    size: int
    copied_pieces: tuple[Piece, ...]
    file: ReadableFile | None
    """Set if bytes of the segment must be read."""
    compare_from: int | None
    """From this byte position on, the copy may differ from the log, so they are compared first. None: no comparison."""

    @property
    def missing_bytes(self) -> int:
        return max(0, self.size - (self.copied_pieces[-1].end if self.copied_pieces else 0))


@dataclass(slots=True)
class Plan:
    log_id: str
    signature: _Signature
    mark: Mark
    synced: tuple[int, int]
    segments: list[PlannedSegment]
    archived: list[tuple[ArchivedSegment, PlannedSegment]]
    """Oldest first."""
    copied_state: StateCopy | None
    state_file: File | None

    @property
    def missing_bytes(self) -> int:
        planned = (*self.segments, *(planned for _, planned in self.archived))
        return sum(segment.missing_bytes for segment in planned)

    def release(self) -> None:
        """Unpin the files. Must run on the event loop."""
        for planned in self.segments:
            if planned.file is not None:
                planned.file = None
                planned.segment.unpin()
        if self.state_file is not None:
            self.state_file.close()
            self.state_file = None

    def resulting_copy(self, part: Part) -> LogCopy:
        """Return the copy that results from this plan.

        If the archive was unavailable, the copy has no signature, so the next round plans the log again.
        """
        return LogCopy(
            part,
            None if part.archived else self.signature,
            {
                planned.segment.base_offset: planned.segment
                for planned in (*self.segments, *(planned for _, planned in self.archived))
            },
            self.signature.state,
        )


def plan_copy(source: Source, copy: LogCopy | None) -> Plan | None:
    """Return the plan to copy a log, or ``None`` if the folder has a complete copy."""
    log = source.log
    mark = _end(log)
    state = log.newest_state(mark.synced_offset)
    entries = log.archive.entries
    archived = (len(entries), entries[-1] if entries else None)
    signature = _Signature(mark, log.changes, state, log.compacted, archived)
    if copy is not None and copy.signature == signature:
        return None
    synced = log.synced_mark
    is_state_copied = state is not None and copy is not None and copy.state_version == state
    plan = Plan(
        source.log_id,
        signature,
        mark,
        (synced.segment, synced.position),
        [],
        [
            (
                segment,
                PlannedSegment(segment, segment.size, _archived_pieces(segment, log, copy), None, None),
            )
            for segment in log.archive.segments
        ],
        copy.part.state if copy is not None and is_state_copied else None,
        None,
    )
    try:
        if state is not None and not is_state_copied:
            plan.state_file = log.files.open(log.directory / state_name(state[1]))
        for segment in log.segments:
            if segment.base_offset <= mark.segment:
                plan.segments.append(_plan_segment(segment, mark, log, copy))
    except BaseException:
        plan.release()
        raise
    return plan


def missing_bytes(source: Source, copy: LogCopy | None) -> int:
    """Estimate how many bytes of a log the folder does not have."""
    log = source.log
    copied = 0 if copy is None else copy.part.size
    archived = sum(entry.size for entry in log.archive.entries)
    return sum(map(log.readable_size, log.segments)) + archived - copied


def _end(log: PartitionLog) -> Mark:
    if log.waits_for_sync:
        return log.synced_mark
    return Mark(log.start_offset, log.end_offset, log.active.base_offset, log.active.size)


def _copied_segment(base: int, copy: LogCopy | None) -> SegmentCopy:
    """Return the pieces of a segment that the folder has, up to the first missing file."""
    if copy is None:
        return SegmentCopy(base)
    copied = next(
        (segment for segment in copy.part.segments if segment.base_offset == base), SegmentCopy(base)
    )
    missing = copy.missing_files
    return SegmentCopy(base, tuple(takewhile(lambda piece: piece.file not in missing, copied.pieces)))


def _archived_pieces(segment: ArchivedSegment, log: PartitionLog, copy: LogCopy | None) -> tuple[Piece, ...]:
    """Return the pieces of an archived segment that need not be copied again.

    In a log that was never compacted, segments only grow, so earlier copies remain valid.
    """
    copied = _copied_segment(segment.base_offset, copy)
    is_same = copy is not None and copy.segments.get(segment.base_offset) is segment
    if log.compacted != Compacted() and not is_same:
        return ()
    return copied.pieces if copied.size <= segment.size else ()


def _plan_segment(segment: Segment, mark: Mark, log: PartitionLog, copy: LogCopy | None) -> PlannedSegment:
    base = segment.base_offset
    size = mark.position if base == mark.segment else segment.size
    pieces: tuple[Piece, ...] = ()
    compare_from: int | None = None
    if copy is not None:
        copied = _copied_segment(base, copy)
        copied_object = copy.segments.get(base)
        if copied_object is segment:
            pieces = copied.pieces
        elif copied_object is None and not copy.segments:
            pieces, compare_from = copied.pieces, _compare_from(base, copied, log, copy.part)
    planned = PlannedSegment(segment, size, pieces, None, compare_from)
    if planned.missing_bytes or compare_from is not None or (pieces and pieces[-1].end > size):
        planned.file = segment.pin()
    return planned


def _compare_from(base: int, copied: SegmentCopy, log: PartitionLog, part: Part) -> int | None:
    """Return the byte position from which on an earlier run's copy may differ from the segment, or ``None``.

    It can differ because a compaction replaced the segment, or because a power loss removed bytes that were not synced.
    """
    if log.config.is_compacted or log.compacted != Compacted():
        return 0 if copied.pieces else None
    segment, position = part.synced
    if base < segment or (base == segment and copied.size <= position):
        return None
    return position if base == segment else 0
