"""Translates a condition and an order to SQL. Values are always parameters and never part of the SQL text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from headrace.stores.query import All, Any, Compare, Condition, IsNull, Not, Operator, OrderBy
from headrace.stores.rows import Value

__all__ = ["SqlColumn", "order_sql", "where_sql"]

_OPPOSITE: dict[Operator, Operator] = {"<": ">=", "<=": ">", ">": "<=", ">=": "<"}


@dataclass(frozen=True, slots=True)
class SqlColumn:
    name: str
    """The quoted name, as in a statement."""
    compared: str
    """An expression that compares and sorts by the rules of ``headrace.stores.query``."""
    placeholder: str
    """The placeholder for a value of the column."""


Columns = Callable[[str], SqlColumn]


def where_sql(condition: Condition, columns: Columns) -> tuple[str, list[Value]]:
    """Return an SQL expression, which is never null, and its parameters in order."""
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
                return _comparison(column, operator)
            opposite = f"{_operand(column, '=')} <> {column.placeholder}"
            if operator != "=":
                opposite = _comparison(column, _OPPOSITE[operator])
            return f"({opposite} OR {column.name} IS NULL)"


def _joined(
    parts: Sequence[Condition], columns: Columns, values: list[Value], word: str, negated: bool
) -> str:
    if not parts:
        return "1 = 1" if word == "AND" else "1 = 0"
    return "(" + f" {word} ".join(_expression(part, columns, values, negated=negated) for part in parts) + ")"


def _comparison(column: SqlColumn, operator: Operator) -> str:
    return f"{_operand(column, operator)} {operator} {column.placeholder}"


def _operand(column: SqlColumn, operator: Operator) -> str:
    """Return the operand. Equal values are stored as equal texts. So for ``=``, return the column itself, so that the
    store can use its index.
    """
    return column.name if operator == "=" else column.compared


def order_sql(order: Sequence[OrderBy], columns: Columns, *, nulls: bool) -> str:
    """Return the ORDER BY clause. ``nulls`` adds NULLS FIRST or LAST, for stores that do not sort nulls first."""
    return ", ".join(
        columns(item.column).compared
        + (" DESC" if item.descending else "")
        + ((" NULLS LAST" if item.descending else " NULLS FIRST") if nulls else "")
        for item in order
    )
