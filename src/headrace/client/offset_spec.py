"""Parses offset specifications that users write, and resolves them to offsets of partitions.

start, end     the oldest record; the end of the partition
47             exactly offset 47
+10, -10       ten after the start; ten before the end
@TIME          the first record at or after a time

A time is a Unix timestamp, a date, a date and time, or a duration:

@1760000000000           13 digits: milliseconds since 1970
@1760000000              9 or 10 digits: seconds since 1970
@2026-11-15              a date: the start of that day in UTC
@2026-11-15T09:30:00Z    ISO 8601; UTC unless it has a UTC offset
@-1h30m                  a duration before now (without the sign: after now); units: ms, s, m, h, d, w
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import Enum

__all__ = [
    "OFFSET_FORMS",
    "Bounds",
    "Kind",
    "OffsetMove",
    "OffsetSpec",
    "Partition",
    "TimeSpec",
    "parse_duration_ms",
    "parse_offset",
    "parse_offset_or_time",
    "parse_time",
    "plan_moves",
    "resolve_offsets",
]

Partition = tuple[str, int]
"""Topic and partition number."""
OFFSET_FORMS = "start, end, 47, +10 (after the start), -10 (before the end) or @-1h"
_OFFSET_MAX = 2**63 - 1
_START = frozenset({"start", "oldest", "earliest", "beginning"})
_END = frozenset({"end", "newest", "latest"})
_UNITS_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
_DURATION = re.compile(r"(?:\d+(?:\.\d+)?(?:ms|[smhdw]))+")
_DURATION_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|[smhdw])")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MS_MAX = 253_402_300_799_999  # the last millisecond of the year 9999


class Kind(Enum):
    START = "start"
    END = "end"
    EXACT = "exact"
    AFTER_START = "after start"
    BEFORE_END = "before end"
    TIME = "time"


@dataclass(frozen=True, slots=True)
class OffsetSpec:
    kind: Kind
    value: int = 0
    """An offset, a number of records or milliseconds since 1970, depending on the kind."""


@dataclass(frozen=True, slots=True)
class TimeSpec:
    ms: int
    """Milliseconds since 1970."""
    absolute: bool
    """False if the time was written as a duration."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """A partition has the offsets from ``start`` up to, but not including, ``end``."""

    start: int
    end: int


@dataclass(frozen=True, slots=True)
class OffsetMove:
    """A change of one committed offset of a group."""

    topic: str
    partition: int
    old: int | None
    """None if the group has not committed an offset for this partition."""
    new: int
    bounds: Bounds

    @property
    def is_in_range(self) -> bool:
        return self.bounds.start <= self.new <= self.bounds.end

    def row(self) -> dict[str, object]:
        return {
            "topic": self.topic,
            "partition": self.partition,
            "old": self.old,
            "new": self.new,
            "moved": None if self.old is None else self.new - self.old,
        }


# Parsing. These functions return None if the text has none of the documented forms.


def parse_offset_or_time(text: str, now_ms: int) -> OffsetSpec | None:
    if not text.startswith("@"):
        return parse_offset(text)
    time = parse_time(text[1:], now_ms)
    return None if time is None else OffsetSpec(Kind.TIME, time.ms)


def parse_offset(text: str) -> OffsetSpec | None:
    if text in _START:
        return OffsetSpec(Kind.START)
    if text in _END:
        return OffsetSpec(Kind.END)
    if text[:1] in ("+", "-"):
        count = _number(text[1:])
        kind = Kind.AFTER_START if text[0] == "+" else Kind.BEFORE_END
        return None if count is None else OffsetSpec(kind, count)
    offset = _number(text)
    return None if offset is None else OffsetSpec(Kind.EXACT, offset)


def _number(text: str) -> int | None:
    if not (text.isascii() and text.isdecimal()):
        return None
    value = int(text)
    return value if value <= _OFFSET_MAX else None


def parse_duration_ms(text: str) -> int | None:
    """Parse a duration like ``1h30m``; returns milliseconds."""
    if not _DURATION.fullmatch(text):
        return None
    return round(
        sum(float(number) * _UNITS_MS[unit] for number, unit in _DURATION_PART.findall(text)),
    )


def parse_time(text: str, base_ms: int) -> TimeSpec | None:
    """Parse a time. A duration is relative to ``base_ms``."""
    if text.isdecimal() and text.isascii():
        if len(text) == 13:
            return TimeSpec(int(text), absolute=True)
        if len(text) in (9, 10):
            return TimeSpec(int(text) * 1_000, absolute=True)
        return None
    sign = -1 if text.startswith("-") else 1
    duration = parse_duration_ms(text.removeprefix("-").removeprefix("+"))
    if duration is not None:
        ms = base_ms + sign * duration
        return TimeSpec(ms, absolute=False) if 0 <= ms <= _MS_MAX else None
    if not re.match(r"\d{4}-\d{2}-\d{2}", text):
        return None
    try:
        when = datetime.fromisoformat(text)
    except ValueError:
        return None
    if when.tzinfo is None:
        when = when.replace(tzinfo=UTC)
    ms = (when - _EPOCH) // timedelta(milliseconds=1)
    return TimeSpec(ms, absolute=True) if ms >= 0 else None


# The offset in each partition


def resolve_offsets(
    spec: OffsetSpec,
    bounds: Mapping[Partition, Bounds],
    first_since: Callable[[int], Mapping[Partition, int]],
) -> dict[Partition, int]:
    """Resolve ``spec`` to an offset in each partition. An exact offset is returned even if it is out of range.

    ``first_since`` returns, for each partition, the offset of the first record at or after a time in milliseconds. It
    is negative if the partition has no such record.
    """
    match spec.kind:
        case Kind.START:
            return {partition: limits.start for partition, limits in bounds.items()}
        case Kind.END:
            return {partition: limits.end for partition, limits in bounds.items()}
        case Kind.EXACT:
            return dict.fromkeys(bounds, spec.value)
        case Kind.AFTER_START:
            return {
                partition: min(limits.start + spec.value, limits.end) for partition, limits in bounds.items()
            }
        case Kind.BEFORE_END:
            return {
                partition: max(limits.end - spec.value, limits.start) for partition, limits in bounds.items()
            }
        case Kind.TIME:
            # If no record is that late, the next record will be the first one.
            return {
                partition: offset if offset >= 0 else bounds[partition].end
                for partition, offset in first_since(spec.value).items()
            }


def plan_moves(
    targets: Mapping[Partition, int], committed: Mapping[Partition, int], bounds: Mapping[Partition, Bounds]
) -> list[OffsetMove]:
    return [
        OffsetMove(topic, number, committed.get((topic, number)), offset, bounds[topic, number])
        for (topic, number), offset in targets.items()
    ]
