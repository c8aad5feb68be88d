"""Places in a log as people write them, before any broker is asked.

    start, end     the oldest record there is; the place of the next one to come
    47             exactly offset 47
    +10, -10       ten after the start; ten before the end
    @MOMENT        the first record at or after a moment (see ``moments``)

A range has a colon: ``10:20``, ``10:end``, ``:end``, ``:20``, ``@t1:t2``, ``@t1:end``, ``@:t2``. The left
side is read, the right side is not. These are rpk's forms.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from headrace.cli.errors import UsageError
from headrace.cli.moments import Moment, parse_moment, parse_span

__all__ = ["Kind", "Place", "Range", "parse_place", "parse_range"]

_OFFSET_MAX = 2**63 - 1
_START = frozenset({"start", "oldest", "earliest", "beginning"})
_END = frozenset({"end", "newest", "latest"})


class Kind(Enum):
    START = "start"
    END = "end"
    EXACT = "exact"
    AFTER_START = "after start"
    BEFORE_END = "before end"
    TIME = "time"


@dataclass(frozen=True, slots=True)
class Place:
    kind: Kind
    value: int = 0
    """An offset, a count of records or milliseconds since 1970, as the kind says."""


@dataclass(frozen=True, slots=True)
class Range:
    begin: Place
    until: Place | None = None


def _number(text: str) -> int | None:
    if not (text.isascii() and text.isdecimal()):
        return None
    value = int(text)
    return value if value <= _OFFSET_MAX else None


def _simple(text: str) -> Place | None:
    if text in _START:
        return Place(Kind.START)
    if text in _END:
        return Place(Kind.END)
    if text[:1] in ("+", "-"):
        count = _number(text[1:])
        kind = Kind.AFTER_START if text[0] == "+" else Kind.BEFORE_END
        return None if count is None else Place(kind, count)
    offset = _number(text)
    return None if offset is None else Place(Kind.EXACT, offset)


def _refuse(text: str, forms: str) -> UsageError:
    return UsageError(f"{text!r} is not a place in a topic", hint=f"write {forms}")


def _at(moment: Moment) -> Place:
    return Place(Kind.TIME, moment.ms)


def parse_place(text: str, now_ms: int) -> Place:
    """One place, as ``group seek --to`` and ``topic trim --before`` take it."""
    if text.startswith("@"):
        return _at(parse_moment(text[1:], now_ms))
    place = _simple(text)
    if place is None:
        raise _refuse(text, "start, end, 47, +10 (after the start), -10 (before the end) or @-1h")
    return place


def parse_range(text: str, now_ms: int) -> Range:
    """A place to begin and, after a colon, one to stop before, as ``consume --offset`` takes it."""
    if text.startswith("@"):
        begin, until = parse_span(text[1:], now_ms)
        return Range(
            Place(Kind.START) if begin is None else _at(begin),
            Place(Kind.END) if until == "end" else _at(until) if isinstance(until, Moment) else None,
        )
    left, colon, right = text.partition(":")
    first = _simple(left) if left or not colon else Place(Kind.START)
    last = _simple(right) if right else None
    if first is None or (right and last is None) or text == ":":
        raise _refuse(text, "start, end, 47, +10, -10, 10:20, 10:end, :end, @-1h or @-2h:-1h")
    if (
        last is not None
        and last.kind is Kind.EXACT
        and first.kind is Kind.EXACT
        and last.value <= first.value
    ):
        raise UsageError(f"the range {text!r} is empty: it ends at {last.value}, before offset {first.value}")
    return Range(first, last)
