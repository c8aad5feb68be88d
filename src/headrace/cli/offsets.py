"""Places and ranges on a command line; how places are written: ``headrace.client.places``.

A range has a colon: ``10:20``, ``10:end``, ``:end``, ``:20``, ``@t1:t2``, ``@t1:end``, ``@:t2``. The left
side is read, the right side is not. These are rpk's forms.
"""

from __future__ import annotations

from dataclasses import dataclass

from headrace.cli.errors import UsageError
from headrace.cli.moments import Moment, parse_moment, parse_span
from headrace.client.places import PLACES, Kind, Place, read_simple

__all__ = ["Kind", "Place", "Range", "parse_place", "parse_range"]


@dataclass(frozen=True, slots=True)
class Range:
    begin: Place
    until: Place | None = None


def _refuse(text: str, forms: str) -> UsageError:
    return UsageError(f"{text!r} is not a place in a topic", hint=f"write {forms}")


def _at(moment: Moment) -> Place:
    return Place(Kind.TIME, moment.ms)


def parse_place(text: str, now_ms: int) -> Place:
    """One place, as ``group seek --to`` and ``topic trim --before`` take it."""
    if text.startswith("@"):
        return _at(parse_moment(text[1:], now_ms))
    place = read_simple(text)
    if place is None:
        raise _refuse(text, PLACES)
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
    first = read_simple(left) if left or not colon else Place(Kind.START)
    last = read_simple(right) if right else None
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
