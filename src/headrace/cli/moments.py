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

from headrace.cli.errors import UsageError

__all__ = ["Moment", "parse_duration_ms", "parse_moment", "parse_span"]

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


def _parse(text: str, base_ms: int) -> Moment | None:
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


def _refuse(text: str) -> UsageError:
    return UsageError(
        f"{text!r} is not a moment in time",
        hint="write 13 digits (milliseconds), 10 (seconds), 2026-11-15, 2026-11-15T09:30:00Z, or -1h30m",
    )


def parse_moment(text: str, now_ms: int) -> Moment:
    moment = _parse(text, now_ms)
    if moment is None:
        raise _refuse(text)
    return moment


def parse_span(text: str, now_ms: int) -> tuple[Moment | None, Moment | str | None]:
    """``t``, ``t1:t2``, ``t1:end``, ``t1:`` or ``:t2``: where it begins and where it stops (None: not said).

    A duration after the colon counts from the first moment if that one is a point in time, otherwise from
    now. The colons inside a time of day are told from the one between two moments by what parses.
    """
    whole = _parse(text, now_ms)
    if whole is not None:
        return whole, None
    for index, char in enumerate(text):
        if char != ":":
            continue
        left, right = text[:index], text[index + 1 :]
        begin = _parse(left, now_ms) if left else None
        if left and begin is None:
            continue
        if not right:
            return begin, None
        if right == "end":
            return begin, "end"
        until = _parse(right, begin.ms if begin and begin.absolute else now_ms)
        if until is not None:
            return begin, until
    raise _refuse(text)
