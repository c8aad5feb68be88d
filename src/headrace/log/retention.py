"""Retention: finds and deletes the oldest segments that exceed the topic's retention by time or by size.

It deletes only whole segments below the high watermark. It uses trusted time (``headrace.clock``), so that a jump of
the wall clock does not delete records.
"""

from __future__ import annotations

from dataclasses import dataclass

from headrace.log.partition import PartitionLog
from headrace.log.segment import Segment

__all__ = ["Overdue", "TrimResult", "overdue", "segments_past_retention", "trim"]


@dataclass(frozen=True, slots=True)
class TrimResult:
    first_offset: int
    next_offset: int
    bytes: int
    reason: str


@dataclass(frozen=True, slots=True)
class Overdue:
    """The records past their retention: all records below ``new_start``."""

    first_offset: int
    new_start: int
    segments: tuple[Segment, ...]
    reason: str

    def removed(self, log: PartitionLog) -> TrimResult:
        """Return what was deleted. Call this after the log's start offset has advanced."""
        size = sum(segment.size for segment in self.segments if segment not in log.segments)
        return TrimResult(self.first_offset, log.start_offset, size, self.reason)


def trim(log: PartitionLog, trusted_now_ms: int) -> TrimResult | None:
    """Delete the records past their retention in the calling thread; returns what was deleted, or ``None``."""
    overdue_records = overdue(log, trusted_now_ms)
    if overdue_records is None:
        return None
    log.delete_before(overdue_records.new_start)
    return overdue_records.removed(log)


def overdue(log: PartitionLog, trusted_now_ms: int) -> Overdue | None:
    if not log.config.has_delete_policy or log.compacting is not None or log.config.is_archived:
        return None
    new_start, reason = _start_by_time(log, trusted_now_ms)
    by_size = _start_by_size(log)
    if by_size > new_start:
        new_start, reason = by_size, "retention.bytes"
    new_start = min(new_start, log.high_watermark)
    if new_start <= log.start_offset:
        return None
    if new_start > log.active.base_offset:
        # Even the newest records are too old. Seal their segment first, because the active segment is never removed.
        log.roll(trusted_now_ms)
    segments = tuple(segment for segment in log.segments if segment.end_offset <= new_start)
    return Overdue(log.start_offset, new_start, segments, reason)


def segments_past_retention(log: PartitionLog, trusted_now_ms: int) -> list[Segment]:
    """Return the sealed segments that an archived topic must move to the archive, oldest first."""
    if not log.config.has_delete_policy or not log.config.is_archived:
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
        # The age of a segment without a timestamp is unknown, so the segment remains.
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
