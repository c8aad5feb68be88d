"""A query over the rows of a view: a condition, an order, a start and a limit.

A condition is true or false, never unknown. A null is equal only to null, and neither less nor greater than any value.
Nulls sort first. Texts sort by code points, decimals by their value, and NaN after all other floats. So every store
returns the same rows in the same order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from headrace.model.kinds import Digits, Enum, Field, Scalar
from headrace.stores.position import ViewSchema, ViewState
from headrace.stores.rows import Row, Value

__all__ = [
    "EVERY_ROW",
    "NO_ROW",
    "All",
    "Any",
    "Compare",
    "Condition",
    "IsNull",
    "Not",
    "Operator",
    "OrderBy",
    "Query",
    "QueryResult",
    "is_comparable",
    "key_equals",
    "key_in",
    "order_by_key",
    "rows_after",
    "rows_before",
    "starts_with",
    "total_order",
]

Operator = Literal["=", "<", "<=", ">", ">="]
_LAST_CHAR = 0x10FFFF


@dataclass(frozen=True, slots=True)
class Compare:
    """``value`` is a row value and never None."""

    column: str
    operator: Operator
    value: Value


@dataclass(frozen=True, slots=True)
class IsNull:
    column: str


@dataclass(frozen=True, slots=True)
class All:
    """True if all parts are true; also true if it has no parts."""

    parts: tuple[Condition, ...]


@dataclass(frozen=True, slots=True)
class Any:
    """True if at least one part is true; false if it has no parts."""

    parts: tuple[Condition, ...]


@dataclass(frozen=True, slots=True)
class Not:
    part: Condition


Condition = Compare | IsNull | All | Any | Not
EVERY_ROW = All(())
NO_ROW = Any(())


@dataclass(frozen=True, slots=True)
class OrderBy:
    column: str
    descending: bool = False


@dataclass(frozen=True, slots=True)
class Query:
    limit: int
    where: Condition = EVERY_ROW
    order: tuple[OrderBy, ...] = ()
    """Includes all columns of the key, so that the order is total."""
    key: Row | None = None
    """Selects the row with this key. The values are in the order of the view's key."""
    words: str = ""
    """Words to search in a full-text index. Without ``order``, the best matches come first."""
    skip: int = 0
    """The number of matches to skip, for a query with ``words`` and without ``order``."""


@dataclass(frozen=True, slots=True)
class QueryResult:
    """The rows of a query, and the state of the view that they belong to."""

    state: ViewState
    query: Query
    rows: list[Row]
    more: bool
    """True if more rows match than the limit."""


def is_comparable(field: Field) -> bool:
    """Return whether values of the field can be compared. Lists, maps and records cannot: they have no order, and
    different texts can mean the same value.
    """
    return isinstance(field.kind, (Scalar, Digits, Enum))


def order_by_key(schema: ViewSchema) -> tuple[OrderBy, ...]:
    return tuple(map(OrderBy, schema.key))


def total_order(schema: ViewSchema, order: Sequence[OrderBy]) -> tuple[OrderBy, ...]:
    """Return ``order``, followed by the key columns that it does not contain."""
    named = [item.column for item in order]
    return (*order, *(item for item in order_by_key(schema) if item.column not in named))


def key_equals(schema: ViewSchema, key: Row) -> Condition:
    return All(tuple(Compare(name, "=", value) for name, value in zip(schema.key, key, strict=True)))


def key_in(schema: ViewSchema, where: Condition) -> tuple[Value, ...] | None:
    """Return the key of the only row that can match, or None if the condition does not determine the key."""
    parts = where.parts if isinstance(where, All) else (where,)
    equal = {part.column: part.value for part in parts if isinstance(part, Compare) and part.operator == "="}
    return tuple(equal[name] for name in schema.key) if all(name in equal for name in schema.key) else None


def starts_with(column: str, text: str) -> Condition:
    """Return the condition that the column starts with the text, as a range of texts."""
    first = Compare(column, ">=", text)
    end = _next_text(text)
    return first if end is None else All((first, Compare(column, "<", end)))


def rows_after(order: Sequence[OrderBy], values: Sequence[Value], *, inclusive: bool = False) -> Condition:
    """Match the rows that sort after these values, and with ``inclusive`` also the row with these values."""
    (first, *others), (value, *rest) = order, values
    if value is not None and not first.descending and not others:
        return Compare(first.column, ">=" if inclusive else ">", value)
    beyond = _less(first.column, value) if first.descending else _greater(first.column, value)
    same = IsNull(first.column) if value is None else Compare(first.column, "=", value)
    rest_after: Condition = EVERY_ROW if inclusive else NO_ROW
    if others:
        rest_after = rows_after(others, rest, inclusive=inclusive)
    after: Condition = Any((beyond, All((same, rest_after))))
    if value is not None and not first.descending:
        # This part excludes no further rows, but a store can use it to find the starting point in its index.
        after = All((Compare(first.column, ">=", value), after))
    return after


def rows_before(columns: Sequence[str], values: Sequence[Value]) -> Condition:
    """Match the rows that sort before these values. No value may be null."""
    (first, *others), (value, *rest) = columns, values
    if not others:
        return Compare(first, "<", value)
    same = All((Compare(first, "=", value), rows_before(others, rest)))
    return All((Compare(first, "<=", value), Any((Compare(first, "<", value), same))))


def _greater(column: str, value: Value) -> Condition:
    return Not(IsNull(column)) if value is None else Compare(column, ">", value)


def _less(column: str, value: Value) -> Condition:
    return NO_ROW if value is None else Any((Compare(column, "<", value), IsNull(column)))


def _next_text(text: str) -> str | None:
    """Return the lowest text that is greater than all texts with this prefix, or None if no text is greater."""
    while text:
        text, last = text[:-1], ord(text[-1])
        if last < _LAST_CHAR:
            # Skip the surrogates, which are not characters.
            return text + chr(0xE000 if last == 0xD7FF else last + 1)
    return None
