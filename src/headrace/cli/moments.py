"""Moments on a command line; how they are written: ``headrace.client.moments``."""

from __future__ import annotations

from headrace.cli.errors import UsageError
from headrace.client.moments import Moment, parse_duration_ms, read_moment

__all__ = ["Moment", "parse_duration_ms", "parse_moment", "parse_span"]


def _refuse(text: str) -> UsageError:
    return UsageError(
        f"{text!r} is not a moment in time",
        hint="write 13 digits (milliseconds), 10 (seconds), 2026-11-15, 2026-11-15T09:30:00Z, or -1h30m",
    )


def parse_moment(text: str, now_ms: int) -> Moment:
    moment = read_moment(text, now_ms)
    if moment is None:
        raise _refuse(text)
    return moment


def parse_span(text: str, now_ms: int) -> tuple[Moment | None, Moment | str | None]:
    """``t``, ``t1:t2``, ``t1:end``, ``t1:`` or ``:t2``: where it begins and where it stops (None: not said).

    A duration after the colon counts from the first moment if that one is a point in time, otherwise from
    now. The colons inside a time of day are told from the one between two moments by what parses.
    """
    whole = read_moment(text, now_ms)
    if whole is not None:
        return whole, None
    for index, char in enumerate(text):
        if char != ":":
            continue
        left, right = text[:index], text[index + 1 :]
        begin = read_moment(left, now_ms) if left else None
        if left and begin is None:
            continue
        if not right:
            return begin, None
        if right == "end":
            return begin, "end"
        until = read_moment(right, begin.ms if begin and begin.absolute else now_ms)
        if until is not None:
            return begin, until
    raise _refuse(text)
