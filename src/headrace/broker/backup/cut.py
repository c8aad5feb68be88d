"""A moment of the whole log, taken in one turn of the event loop.

The broker does everything that changes a log in one thread, and learns there what the disk has. So what all partitions
and journals are known to have in one turn of that thread is what a crash in this very turn could have left: offsets
that a group has committed lie in the log, a transaction that is decided is decided everywhere, and one that is not is
open. A start that finds the moment restored does what it does after a crash, and need not know about backups.

``take`` looks at a partition, which is cheap, and opens the files that are to be copied, so that neither compaction nor
retention can take them away meanwhile; ``Plan.let_go`` gives them back. Segments in the archive are part of the log as
well, and of its backup, which mostly has them from before they were moved. What it lacks of them is opened by whoever
copies it, because the archive may be a mount that keeps others waiting, or away.

With durability ``synced`` the moment ends where the disk has everything. With ``os`` it ends where readers do, as after
kill -9; what the broker's own disk had not got is noted, and compared after the next start.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import takewhile
from typing import NamedTuple

from headrace.broker.backup.manifest import Part, Piece, Run, StateCopy
from headrace.files import File
from headrace.log.archived_segment import ArchivedSegment, Entry
from headrace.log.compacted import Compacted
from headrace.log.mark import Mark
from headrace.log.partition import PartitionLog
from headrace.log.scan import ReadableFile
from headrace.log.segment import ReadableSegment, Segment
from headrace.log.state import state_name

__all__ = ["Known", "Plan", "PlannedRun", "Source", "missing", "take"]


class Source(NamedTuple):
    place: str
    log: PartitionLog


class _Signature(NamedTuple):
    """Equal as long as nothing has changed that a manifest tells of."""

    mark: Mark
    changes: int
    state: tuple[int, int] | None
    compacted: Compacted
    archived: tuple[int, Entry | None]


@dataclass(slots=True)
class Known:
    """What the folder has of a place."""

    part: Part
    signature: _Signature | None = None
    segments: dict[int, ReadableSegment] = field(default_factory=dict)
    """The very segments that were copied: one that was compacted since is another. None of those that an earlier run
    has copied is in it.
    """
    state_version: tuple[int, int] | None = None
    missing: frozenset[str] = frozenset()
    """Files of it that are not in the folder any more, or not as long as they were."""


@dataclass(slots=True)
class PlannedRun:
    segment: ReadableSegment
    size: int
    known: tuple[Piece, ...]
    file: ReadableFile | None
    """Where there is something to read."""
    doubted_from: int | None
    """From which byte on what is known has to be compared first."""

    @property
    def missing(self) -> int:
        return max(0, self.size - (self.known[-1].end if self.known else 0))


@dataclass(slots=True)
class Plan:
    place: str
    signature: _Signature
    mark: Mark
    synced: tuple[int, int]
    runs: list[PlannedRun]
    archived: list[tuple[ArchivedSegment, PlannedRun]]
    """Oldest first."""
    state_known: StateCopy | None
    state_file: File | None

    @property
    def missing(self) -> int:
        return sum(run.missing for run in self.runs) + sum(run.missing for _, run in self.archived)

    def let_go(self) -> None:
        """On the event loop."""
        for run in self.runs:
            if run.file is not None:
                run.file = None
                run.segment.unpin()
        if self.state_file is not None:
            self.state_file.close()
            self.state_file = None

    def known(self, part: Part) -> Known:
        """What is known once the plan is carried out. Without a signature the next round takes the place again: the
        archive may be back by then.
        """
        return Known(
            part,
            None if part.archived else self.signature,
            {
                run.segment.base_offset: run.segment
                for run in (*self.runs, *(run for _, run in self.archived))
            },
            self.signature.state,
        )


def take(source: Source, known: Known | None) -> Plan | None:
    """What there is to copy; ``None`` if the folder has it all."""
    log = source.log
    mark = _end(log)
    state = log.newest_state(mark.synced_offset)
    entries = log.archive.entries
    archived = (len(entries), entries[-1] if entries else None)
    signature = _Signature(mark, log.changes, state, log.compacted, archived)
    if known is not None and known.signature == signature:
        return None
    synced = log.synced_mark
    has_state = state is not None and known is not None and known.state_version == state
    plan = Plan(
        source.place,
        signature,
        mark,
        (synced.segment, synced.position),
        [],
        [
            (segment, PlannedRun(segment, segment.size, _archived_pieces(segment, log, known), None, None))
            for segment in log.archive.segments
        ],
        known.part.state if known is not None and has_state else None,
        None,
    )
    try:
        if state is not None and not has_state:
            plan.state_file = log.files.open(log.directory / state_name(state[1]))
        for segment in log.segments:
            if segment.base_offset <= mark.segment:
                plan.runs.append(_planned(segment, mark, log, known))
    except BaseException:
        plan.let_go()
        raise
    return plan


def missing(source: Source, known: Known | None) -> int:
    """About how many bytes there are to copy."""
    log = source.log
    copied = 0 if known is None else known.part.size
    archived = sum(entry.size for entry in log.archive.entries)
    return sum(map(log.readable_size, log.segments)) + archived - copied


def _end(log: PartitionLog) -> Mark:
    if log.waits_for_sync:
        return log.synced_mark
    return Mark(log.start_offset, log.end_offset, log.active.base_offset, log.active.size)


def _known_run(base: int, known: Known | None) -> Run:
    """As much of a segment as the folder has for sure."""
    if known is None:
        return Run(base)
    found = next((one for one in known.part.segments if one.base_offset == base), Run(base))
    return Run(base, tuple(takewhile(lambda piece: piece.file not in known.missing, found.pieces)))


def _archived_pieces(segment: ArchivedSegment, log: PartitionLog, known: Known | None) -> tuple[Piece, ...]:
    """Where nothing was ever compacted, a segment is what it was when it was copied, and longer at the most."""
    run = _known_run(segment.base_offset, known)
    if log.compacted != Compacted() and (known is None or known.segments.get(run.base_offset) is not segment):
        return ()
    return run.pieces if run.size <= segment.size else ()


def _planned(segment: Segment, mark: Mark, log: PartitionLog, known: Known | None) -> PlannedRun:
    base = segment.base_offset
    size = mark.position if base == mark.segment else segment.size
    pieces: tuple[Piece, ...] = ()
    doubted_from: int | None = None
    if known is not None:
        run = _known_run(base, known)
        copied = known.segments.get(base)
        if copied is segment:
            pieces = run.pieces
        elif copied is None and not known.segments:
            pieces, doubted_from = run.pieces, _doubted_from(base, run, log, known.part)
    planned = PlannedRun(segment, size, pieces, None, doubted_from)
    if planned.missing or doubted_from is not None or (pieces and pieces[-1].end > size):
        planned.file = segment.pin()
    return planned


def _doubted_from(base: int, run: Run, log: PartitionLog, part: Part) -> int | None:
    """Of what an earlier run has copied: a compaction may have replaced it, a power loss taken what was not synced."""
    if log.config.is_compacted or log.compacted != Compacted():
        return 0 if run.pieces else None
    segment, position = part.synced
    if base < segment or (base == segment and run.size <= position):
        return None
    return position if base == segment else 0
