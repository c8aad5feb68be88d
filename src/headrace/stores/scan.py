"""Executes a query by reading every row, for stores without a suitable index."""

from __future__ import annotations

import functools
import heapq
import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from decimal import Decimal
from typing import Any

from headrace.clock import Clock
from headrace.model.kinds import Digits, Kind, Scalar
from headrace.stores.errors import QueryTimedOut
from headrace.stores.position import ViewSchema
from headrace.stores.query import All, Compare, Condition, IsNull, Not, OrderBy, Query
from headrace.stores.query import Any as AnyOf
from headrace.stores.rows import Row, Value

__all__ = ["Predicate", "predicate_for", "select_rows", "sort_key", "with_deadline"]

_OPERATORS = {
    "=": operator.eq,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_ROWS_PER_CLOCK_READ = 500

Predicate = Callable[[Row], bool]


def select_rows(schema: ViewSchema, rows: Iterable[Row], query: Query) -> tuple[list[Row], bool]:
    """Return the rows of the result, and whether more rows match. It holds only the rows of the result in memory."""
    matching = filter(predicate_for(schema, query.where), rows)
    first = heapq.nsmallest(query.limit + 1, matching, key=sort_key(schema, query.order))
    return first[: query.limit], len(first) > query.limit


def with_deadline(rows: Iterable[Row], clock: Clock, timeout_s: float) -> Iterator[Row]:
    """Yield the rows. Raise ``QueryTimedOut`` if reading them takes longer than ``timeout_s``."""
    deadline = clock.steady() + timeout_s
    for number, row in enumerate(rows):
        if number % _ROWS_PER_CLOCK_READ == 0 and clock.steady() > deadline:
            raise QueryTimedOut(timeout_s)
        yield row


def predicate_for(schema: ViewSchema, condition: Condition) -> Predicate:
    match condition:
        case Not(part):
            inner = predicate_for(schema, part)
            return lambda row: not inner(row)
        case All(parts):
            predicates = [predicate_for(schema, part) for part in parts]
            return lambda row: all(predicate(row) for predicate in predicates)
        case AnyOf(parts):
            predicates = [predicate_for(schema, part) for part in parts]
            return lambda row: any(predicate(row) for predicate in predicates)
        case IsNull(column):
            index = schema.names.index(column)
            return lambda row: row[index] is None
        case Compare(column, sign, value):
            index = schema.names.index(column)
            comparable = _comparable(schema.fields[index].kind)
            operand, compare = comparable(value), _OPERATORS[sign]
            return lambda row: row[index] is not None and bool(compare(comparable(row[index]), operand))


def sort_key(schema: ViewSchema, order: Sequence[OrderBy]) -> Callable[[Row], Any]:
    """Return a sort key that sorts rows in the order that ``headrace.stores.query`` defines."""
    columns = [
        (index := schema.names.index(item.column), _comparable(schema.fields[index].kind), item.descending)
        for item in order
    ]

    def key(row: Row) -> tuple[Any, ...]:
        values = []
        for index, comparable, descending in columns:
            value = row[index]
            nulls_first = (False, None) if value is None else (True, comparable(value))
            values.append(_Reversed(nulls_first) if descending else nulls_first)
        return tuple(values)

    return key


@functools.total_ordering
class _Reversed:
    __slots__ = ("value",)

    def __init__(self, value: tuple[bool, Any]) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Reversed) and self.value == other.value

    def __lt__(self, other: _Reversed) -> bool:
        return other.value < self.value

    __hash__ = None  # type: ignore[assignment]


def _comparable(kind: Kind) -> Callable[[Value], Any]:
    """Return a function that converts a value of this kind to a value that Python sorts correctly."""
    match kind:
        case Scalar("float"):
            return lambda value: (1, 0.0) if value == "NaN" else (0, value)
        case Digits():
            return lambda value: Decimal(str(value))
    return lambda value: value
