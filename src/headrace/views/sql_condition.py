"""A condition and an order as SQL, for any store that takes some; values travel as parameters, never in the text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from headrace.views.question import All, Any, By, Compare, Condition, IsNull, Not, Operator
from headrace.views.rows import Value

__all__ = ["SqlColumn", "order_sql", "where_sql"]

_OPPOSITE: dict[Operator, Operator] = {"<": ">=", "<=": ">", ">": "<=", ">=": "<"}


@dataclass(frozen=True, slots=True)
class SqlColumn:
    name: str
    """As it stands in a statement."""
    compared: str
    """What compares and sorts as values do (``headrace.views.question``)."""
    mark: str
    """What a value's parameter looks like."""


Columns = Callable[[str], SqlColumn]


def where_sql(condition: Condition, columns: Columns) -> tuple[str, list[Value]]:
    """An expression that is true or false, and its parameters in their order."""
    values: list[Value] = []
    return _expression(condition, columns, values, negated=False), values


def _expression(condition: Condition, columns: Columns, values: list[Value], *, negated: bool) -> str:
    match condition:
        case Not(part):
            return _expression(part, columns, values, negated=not negated)
        case All(parts):
            return _joined(parts, columns, values, "OR" if negated else "AND", negated)
        case Any(parts):
            return _joined(parts, columns, values, "AND" if negated else "OR", negated)
        case IsNull(name):
            return f"{columns(name).name} IS {'NOT ' * negated}NULL"
        case Compare(name, operator, value):
            column = columns(name)
            values.append(value)
            if not negated:
                return _compared(column, operator)
            other = f"{_name(column, '=')} <> {column.mark}"
            if operator != "=":
                other = _compared(column, _OPPOSITE[operator])
            return f"({other} OR {column.name} IS NULL)"


def _joined(
    parts: Sequence[Condition], columns: Columns, values: list[Value], word: str, negated: bool
) -> str:
    if not parts:
        return "1 = 1" if word == "AND" else "1 = 0"
    return "(" + f" {word} ".join(_expression(one, columns, values, negated=negated) for one in parts) + ")"


def _compared(column: SqlColumn, operator: Operator) -> str:
    return f"{_name(column, operator)} {operator} {column.mark}"


def _name(column: SqlColumn, operator: Operator) -> str:
    """Equal values have one text, so that an index may be used as it is."""
    return column.name if operator == "=" else column.compared


def order_sql(order: Sequence[By], columns: Columns, *, nulls: bool) -> str:
    """``nulls`` says to name where they go, for a store that does not put them first by itself."""
    return ", ".join(
        columns(one.column).compared
        + (" DESC" if one.descending else "")
        + ((" NULLS LAST" if one.descending else " NULLS FIRST") if nulls else "")
        for one in order
    )
