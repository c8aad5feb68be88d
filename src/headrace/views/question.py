"""What can be asked of a view's rows: which, in which order, from where, and how many.

A condition has two values, true and false: a null equals null only, and is neither less nor greater than anything. In
the order of rows null comes first, then, for each kind, what is less: texts by their code points, exact numbers by
their size, NaN behind all floats. So every store gives the same rows in the same order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from headrace.model.kinds import Choice, Digits, Field, Plain
from headrace.views.position import Shape, Standing
from headrace.views.rows import Row, Value

__all__ = [
    "EVERY_ROW",
    "All",
    "Any",
    "Asked",
    "By",
    "Compare",
    "Condition",
    "IsNull",
    "Not",
    "Operator",
    "Question",
    "before",
    "behind",
    "by_key",
    "is_comparable",
    "key_is",
    "starts_with",
    "whole_order",
]

Operator = Literal["=", "<", "<=", ">", ">="]
_LAST_CHAR = 0x10FFFF


@dataclass(frozen=True, slots=True)
class Compare:
    """``value`` is plain, as rows have it, and not None."""

    column: str
    operator: Operator
    value: Value


@dataclass(frozen=True, slots=True)
class IsNull:
    column: str


@dataclass(frozen=True, slots=True)
class All:
    """True of nothing to ask."""

    parts: tuple[Condition, ...]


@dataclass(frozen=True, slots=True)
class Any:
    """False of nothing to ask."""

    parts: tuple[Condition, ...]


@dataclass(frozen=True, slots=True)
class Not:
    part: Condition


Condition = Compare | IsNull | All | Any | Not
EVERY_ROW = All(())


@dataclass(frozen=True, slots=True)
class By:
    """What rows are sorted by."""

    column: str
    descending: bool = False


@dataclass(frozen=True, slots=True)
class Question:
    limit: int
    where: Condition = EVERY_ROW
    order: tuple[By, ...] = ()
    """Ends with the columns of the key, so that no two rows have the same place."""
    key: Row | None = None
    """The one row that has it; in the order of the view's key."""
    words: str = ""
    """For a full-text index: the rows that have these, the best first where there is no ``order``."""
    skip: int = 0
    """With ``words`` and no ``order``: how many to leave out."""


@dataclass(frozen=True, slots=True)
class Asked:
    """Rows and the position that they are of, as of one moment."""

    standing: Standing
    question: Question
    rows: list[Row]
    more: bool
    """Whether there are more rows than were asked for."""


def is_comparable(field: Field) -> bool:
    """Lists, maps and records have no order, and several texts for one value."""
    return isinstance(field.kind, (Plain, Digits, Choice))


def by_key(shape: Shape) -> tuple[By, ...]:
    return tuple(map(By, shape.key))


def whole_order(shape: Shape, wished: Sequence[By]) -> tuple[By, ...]:
    """What was wished for, then the rest of the key."""
    named = [one.column for one in wished]
    return (*wished, *(one for one in by_key(shape) if one.column not in named))


def key_is(shape: Shape, key: Row) -> Condition:
    return All(tuple(Compare(name, "=", one) for name, one in zip(shape.key, key, strict=True)))


def starts_with(column: str, text: str) -> Condition:
    """Between the text itself and the next one that does not begin with it."""
    begin = Compare(column, ">=", text)
    end = _next_text(text)
    return begin if end is None else All((begin, Compare(column, "<", end)))


def behind(order: Sequence[By], values: Sequence[Value], *, inclusive: bool = False) -> Condition:
    """The rows whose place in the order is behind that of the values, or also at it."""
    (first, *others), (value, *rest) = order, values
    if value is not None and not first.descending and not others:
        return Compare(first.column, ">=" if inclusive else ">", value)
    further = _less(first.column, value) if first.descending else _greater(first.column, value)
    same = IsNull(first.column) if value is None else Compare(first.column, "=", value)
    at: Condition = All(()) if inclusive else Any(())
    found: Condition = Any(
        (further, All((same, behind(others, rest, inclusive=inclusive) if others else at)))
    )
    if value is not None and not first.descending:
        # Says nothing more, but a store finds where to begin by it.
        found = All((Compare(first.column, ">=", value), found))
    return found


def before(columns: Sequence[str], values: Sequence[Value]) -> Condition:
    """The rows whose values are before these, in the order of the columns; none of them is null."""
    (first, *others), (value, *rest) = columns, values
    if not others:
        return Compare(first, "<", value)
    same = All((Compare(first, "=", value), before(others, rest)))
    return All((Compare(first, "<=", value), Any((Compare(first, "<", value), same))))


def _greater(column: str, value: Value) -> Condition:
    return Not(IsNull(column)) if value is None else Compare(column, ">", value)


def _less(column: str, value: Value) -> Condition:
    return Any(()) if value is None else Any((Compare(column, "<", value), IsNull(column)))


def _next_text(text: str) -> str | None:
    """The least text that is greater than all that begin with ``text``; None if there is none."""
    while text:
        text, last = text[:-1], ord(text[-1])
        if last < _LAST_CHAR:
            # Halves of surrogate pairs are no characters.
            return text + chr(0xE000 if last == 0xD7FF else last + 1)
    return None
