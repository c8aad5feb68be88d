"""Finding rows by looking at all of them: for stores that have no index for what is asked."""

from __future__ import annotations

import functools
import heapq
import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from decimal import Decimal
from typing import Any

from headrace.clock import Clock
from headrace.model.kinds import Digits, Kind, Plain
from headrace.views.errors import QueryTimedOut
from headrace.views.position import Shape
from headrace.views.question import All, By, Compare, Condition, IsNull, Not, Question
from headrace.views.question import Any as AnyOf
from headrace.views.rows import Row, Value

__all__ = ["Judge", "found_in", "judge_of", "sort_key", "within"]

_OPERATORS = {
    "=": operator.eq,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_LOOK_EVERY = 500

Judge = Callable[[Row], bool]


def found_in(shape: Shape, rows: Iterable[Row], question: Question) -> tuple[list[Row], bool]:
    """The rows that were asked for, and whether there are more; no more than those are held at a time."""
    fitting = filter(judge_of(shape, question.where), rows)
    first = heapq.nsmallest(question.limit + 1, fitting, key=sort_key(shape, question.order))
    return first[: question.limit], len(first) > question.limit


def within(rows: Iterable[Row], clock: Clock, timeout_s: float) -> Iterator[Row]:
    deadline = clock.steady() + timeout_s
    for number, row in enumerate(rows):
        if number % _LOOK_EVERY == 0 and clock.steady() > deadline:
            raise QueryTimedOut(timeout_s)
        yield row


def judge_of(shape: Shape, condition: Condition) -> Judge:
    match condition:
        case Not(part):
            inner = judge_of(shape, part)
            return lambda row: not inner(row)
        case All(parts):
            judges = [judge_of(shape, one) for one in parts]
            return lambda row: all(judge(row) for judge in judges)
        case AnyOf(parts):
            judges = [judge_of(shape, one) for one in parts]
            return lambda row: any(judge(row) for judge in judges)
        case IsNull(column):
            at = shape.names.index(column)
            return lambda row: row[at] is None
        case Compare(column, sign, value):
            at = shape.names.index(column)
            ordered = _ordered(shape.fields[at].kind)
            wanted, compare = ordered(value), _OPERATORS[sign]
            return lambda row: row[at] is not None and bool(compare(ordered(row[at]), wanted))


def sort_key(shape: Shape, order: Sequence[By]) -> Callable[[Row], Any]:
    """What rows sort by, as every store sorts them."""
    parts = [
        (at := shape.names.index(one.column), _ordered(shape.fields[at].kind), one.descending)
        for one in order
    ]

    def place(row: Row) -> tuple[Any, ...]:
        made = []
        for at, ordered, descending in parts:
            value = row[at]
            one = (False, None) if value is None else (True, ordered(value))
            made.append(_Reversed(one) if descending else one)
        return tuple(made)

    return place


@functools.total_ordering
class _Reversed:
    __slots__ = ("of",)

    def __init__(self, of: tuple[bool, Any]) -> None:
        self.of = of

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Reversed) and self.of == other.of

    def __lt__(self, other: _Reversed) -> bool:
        return other.of < self.of

    __hash__ = None  # type: ignore[assignment]


def _ordered(kind: Kind) -> Callable[[Value], Any]:
    """What sorts as values of the kind do."""
    match kind:
        case Plain("float"):
            return lambda value: (1, 0.0) if value == "NaN" else (0, value)
        case Digits():
            return lambda value: Decimal(str(value))
    return lambda value: value
