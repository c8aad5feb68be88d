"""Parses offsets, times and ranges on the command line. The syntax is that of rpk.

A position is ``start``, ``end``, ``47``, ``+10``, ``-10`` or ``@TIME``; ``headrace.client.offset_spec`` parses it.
A range has a colon: ``10:20``, ``10:end``, ``:end``, ``:20``, ``@t1:t2``, ``@t1:end``, ``@:t2``. It includes its left
side and excludes its right side.
"""

from __future__ import annotations

from dataclasses import dataclass

from headrace.cli.errors import UsageError
from headrace.client.offset_spec import (
    OFFSET_FORMS,
    Kind,
    OffsetSpec,
    TimeSpec,
    parse_duration_ms,
    parse_offset,
    parse_time,
)

__all__ = [
    "Kind",
    "OffsetSpec",
    "Range",
    "TimeSpec",
    "parse_duration_ms",
    "parse_position",
    "parse_range",
    "parse_time_range",
    "parse_timestamp",
]

_TIME_FORMS = "write 13 digits (milliseconds), 10 (seconds), 2026-11-15, 2026-11-15T09:30:00Z, or -1h30m"


@dataclass(frozen=True, slots=True)
class Range:
    begin: OffsetSpec
    until: OffsetSpec | None = None


def _invalid_offset(text: str, forms: str) -> UsageError:
    return UsageError(f"{text!r} is not an offset or a time", hint=f"write {forms}")


def _invalid_time(text: str) -> UsageError:
    return UsageError(f"{text!r} is not a time", hint=_TIME_FORMS)


def parse_timestamp(text: str, now_ms: int) -> TimeSpec:
    time = parse_time(text, now_ms)
    if time is None:
        raise _invalid_time(text)
    return time


def parse_time_range(text: str, now_ms: int) -> tuple[TimeSpec | None, TimeSpec | str | None]:
    """Parse ``t``, ``t1:t2``, ``t1:end``, ``t1:`` or ``:t2`` into begin and end. An absent side is None.

    A duration after the colon is relative to the begin time if that is absolute, otherwise to now. A time of day also
    contains colons, so the separator is the first colon with a valid time on both sides.
    """
    whole = parse_time(text, now_ms)
    if whole is not None:
        return whole, None
    for index, char in enumerate(text):
        if char != ":":
            continue
        left, right = text[:index], text[index + 1 :]
        begin = parse_time(left, now_ms) if left else None
        if left and begin is None:
            continue
        if not right:
            return begin, None
        if right == "end":
            return begin, "end"
        until = parse_time(right, begin.ms if begin and begin.absolute else now_ms)
        if until is not None:
            return begin, until
    raise _invalid_time(text)


def _time_spec(time: TimeSpec) -> OffsetSpec:
    return OffsetSpec(Kind.TIME, time.ms)


def parse_position(text: str, now_ms: int) -> OffsetSpec:
    """Parse one position, for ``group seek --to`` and ``topic trim --before``."""
    if text.startswith("@"):
        return _time_spec(parse_timestamp(text[1:], now_ms))
    spec = parse_offset(text)
    if spec is None:
        raise _invalid_offset(text, OFFSET_FORMS)
    return spec


def parse_range(text: str, now_ms: int) -> Range:
    """Parse a start and, after a colon, an end, for ``consume --offset``."""
    if text.startswith("@"):
        begin, until = parse_time_range(text[1:], now_ms)
        return Range(
            OffsetSpec(Kind.START) if begin is None else _time_spec(begin),
            OffsetSpec(Kind.END)
            if until == "end"
            else _time_spec(until)
            if isinstance(until, TimeSpec)
            else None,
        )
    left, colon, right = text.partition(":")
    first = parse_offset(left) if left or not colon else OffsetSpec(Kind.START)
    last = parse_offset(right) if right else None
    if first is None or (right and last is None) or text == ":":
        raise _invalid_offset(text, "start, end, 47, +10, -10, 10:20, 10:end, :end, @-1h or @-2h:-1h")
    if (
        last is not None
        and last.kind is Kind.EXACT
        and first.kind is Kind.EXACT
        and last.value <= first.value
    ):
        raise UsageError(
            f"the range {text!r} is empty: its end {last.value} is not after its start {first.value}"
        )
    return Range(first, last)
