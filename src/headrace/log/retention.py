"""Which of a partition's oldest segments may go: those wholly older than the topic keeps, and those beyond
its size.

Only whole segments below the high watermark go. The time that decides is a *trusted* one (see
``headrace.broker.trusted_time``): a wall clock that jumps must not delete what people still expect to find.
"""

from __future__ import annotations

from dataclasses import dataclass

from headrace.log.partition import PartitionLog
from headrace.log.segment import Segment

__all__ = ["Overdue", "Trimmed", "outlived", "overdue", "trim"]


@dataclass(frozen=True, slots=True)
class Trimmed:
    first_offset: int
    next_offset: int
    bytes: int
    reason: str


@dataclass(frozen=True, slots=True)
class Overdue:
    """What a topic's settings no longer keep: all below the new start."""

    first_offset: int
    new_start: int
    segments: tuple[Segment, ...]
    reason: str

    def gone(self, log: PartitionLog) -> Trimmed:
        """What went, now that the log's start has moved."""
        size = sum(segment.size for segment in self.segments if segment not in log.segments)
        return Trimmed(self.first_offset, log.start_offset, size, self.reason)


def trim(log: PartitionLog, trusted_now_ms: int) -> Trimmed | None:
    """Delete what is overdue, in the calling thread; says what went, or ``None``."""
    found = overdue(log, trusted_now_ms)
    if found is None:
        return None
    log.delete_before(found.new_start)
    return found.gone(log)


def overdue(log: PartitionLog, trusted_now_ms: int) -> Overdue | None:
    if not log.config.is_trimmed or log.compacting is not None or log.config.is_archived:
        return None
    new_start, reason = _start_by_time(log, trusted_now_ms)
    by_size = _start_by_size(log)
    if by_size > new_start:
        new_start, reason = by_size, "retention.bytes"
    new_start = min(new_start, log.high_watermark)
    if new_start <= log.start_offset:
        return None
    if new_start > log.active.base_offset:
        # Even the newest data is too old: it goes as a sealed segment, so that the file being written to is
        # never removed.
        log.roll(trusted_now_ms)
    segments = tuple(segment for segment in log.segments if segment.end_offset <= new_start)
    return Overdue(log.start_offset, new_start, segments, reason)


def outlived(log: PartitionLog, trusted_now_ms: int) -> list[Segment]:
    """The sealed segments of an archived topic that are past what it keeps here, oldest first."""
    if not log.config.is_trimmed or not log.config.is_archived:
        return []
    end, _ = _start_by_time(log, trusted_now_ms)
    end = min(max(end, _start_by_size(log)), log.high_watermark)
    if end > log.active.base_offset and log.active.size:
        log.roll(trusted_now_ms)
    return [segment for segment in log.segments[:-1] if segment.end_offset <= end]


def _start_by_time(log: PartitionLog, trusted_now_ms: int) -> tuple[int, str]:
    start = log.start_offset
    if log.config.retention_ms < 0:
        return start, ""
    horizon = trusted_now_ms - log.config.retention_ms
    for segment in log.segments:
        # Without a timestamp nothing says how old a segment is, so it stays.
        if segment.index.max_timestamp >= horizon or segment.index.max_timestamp < 0:
            break
        start = segment.end_offset
    return start, "retention.ms"


def _start_by_size(log: PartitionLog) -> int:
    start = log.start_offset
    excess = log.size_bytes - log.config.retention_bytes
    if log.config.retention_bytes < 0:
        return start
    for segment in log.segments[:-1]:
        if excess < segment.size:
            break
        excess -= segment.size
        start = segment.end_offset
    return start
