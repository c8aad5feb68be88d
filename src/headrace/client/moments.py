"""Moments as people write them after an ``@``: a number since 1970, a date, a date and time, or a duration.

@1760000000000           13 digits: milliseconds since 1970
@1760000000              9 or 10 digits: seconds since 1970
@2026-11-15              a day, from its first instant, UTC
@2026-11-15T09:30:00Z    ISO 8601; UTC unless it carries an offset
@-1h30m                  a duration before now (or after, without the sign): ms, s, m, h, d, w
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

__all__ = ["Moment", "parse_duration_ms", "read_moment"]

_UNITS_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
_DURATION = re.compile(r"(?:\d+(?:\.\d+)?(?:ms|[smhdw]))+")
_DURATION_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|[smhdw])")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MS_MAX = 253_402_300_799_999  # the last millisecond of the year 9999


@dataclass(frozen=True, slots=True)
class Moment:
    """Milliseconds since 1970; ``absolute`` unless it was given as a duration."""

    ms: int
    absolute: bool


def parse_duration_ms(text: str) -> int | None:
    """``1h30m`` in milliseconds, or None if the text is no duration."""
    if not _DURATION.fullmatch(text):
        return None
    return round(
        sum(float(number) * _UNITS_MS[unit] for number, unit in _DURATION_PART.findall(text)),
    )


def read_moment(text: str, base_ms: int) -> Moment | None:
    """None if the text is no moment; a duration counts from ``base_ms``."""
    if text.isdecimal() and text.isascii():
        if len(text) == 13:
            return Moment(int(text), absolute=True)
        if len(text) in (9, 10):
            return Moment(int(text) * 1_000, absolute=True)
        return None
    sign = -1 if text.startswith("-") else 1
    duration = parse_duration_ms(text.removeprefix("-").removeprefix("+"))
    if duration is not None:
        ms = base_ms + sign * duration
        return Moment(ms, absolute=False) if 0 <= ms <= _MS_MAX else None
    if not re.match(r"\d{4}-\d{2}-\d{2}", text):
        return None
    try:
        when = datetime.fromisoformat(text)
    except ValueError:
        return None
    if when.tzinfo is None:
        when = when.replace(tzinfo=UTC)
    ms = (when - _EPOCH) // timedelta(milliseconds=1)
    return Moment(ms, absolute=True) if ms >= 0 else None
