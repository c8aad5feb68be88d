"""Uses DuckDB's optimizer to find the columns and rows that a statement needs from each view.

It runs EXPLAIN for the statement over empty tables. The result can include too many rows but never too few: DuckDB
applies every condition again when it runs the statement.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec

from headrace.model.codec.scalar_text import time_text
from headrace.model.kinds import Enum, Field, Scalar
from headrace.stores.arrow import TableScan
from headrace.stores.position import ViewSchema
from headrace.stores.query import EVERY_ROW, NO_ROW, All, Compare, Condition, IsNull, Not
from headrace.stores.query import Any as AnyOf
from headrace.stores.rows import Value

__all__ = ["table_scans"]

_TABLE = re.compile(r'memory\."?plan"?\."?t(\d+)"?')
_COLUMN = re.compile(r"c(\d+)")
_OPTIONAL = "optional: "
_OPERATORS = {
    "COMPARE_EQUAL": "=",
    "COMPARE_LESSTHAN": "<",
    "COMPARE_LESSTHANOREQUALTO": "<=",
    "COMPARE_GREATERTHAN": ">",
    "COMPARE_GREATERTHANOREQUALTO": ">=",
}
_SQL_TO_TREE = (
    "SELECT json_serialize_sql(?::VARCHAR, skip_null := true, skip_empty := true, skip_default := true)"
)
_INT_MAX = 2**63


def table_scans(
    connection: Any, sql: str, parameters: Sequence[Any], schemas: Sequence[ViewSchema]
) -> list[TableScan]:
    """Return the scan of each table ``plan.tN``, in order."""
    plan_rows = connection.execute(f"EXPLAIN (FORMAT json) {sql}", list(parameters)).fetchall()
    scans: dict[int, list[tuple[set[int], Condition]]] = {}
    for node in _nodes(msgspec.json.decode(plan_rows[0][1])):
        extra_info = node.get("extra_info", {})
        table = _TABLE.fullmatch(str(extra_info.get("Table", "")))
        if table is not None:
            index = int(table[1])
            scans.setdefault(index, []).append(_scan(connection, extra_info, schemas[index]))
    return [_merge_scans(schema, scans.get(index, [])) for index, schema in enumerate(schemas)]


def _merge_scans(schema: ViewSchema, scans: list[tuple[set[int], Condition]]) -> TableScan:
    if not scans:
        # The statement needs no rows, but the response still needs the view's position.
        return TableScan(schema.key_indexes, NO_ROW)
    columns = set().union(*(scanned for scanned, _ in scans)) or {schema.key_indexes[0]}
    conditions = [where for _, where in scans]
    where: Condition = conditions[0] if len(conditions) == 1 else AnyOf(tuple(conditions))
    if EVERY_ROW in conditions:
        where = EVERY_ROW
    return TableScan(tuple(sorted(columns)), where)


def _scan(connection: Any, extra_info: dict[str, Any], schema: ViewSchema) -> tuple[set[int], Condition]:
    columns: set[int] = set()
    for text in _texts(extra_info.get("Projections")):
        match = _COLUMN.fullmatch(text)
        if match is None:
            return set(range(len(schema.fields))), EVERY_ROW
        columns.add(int(match[1]))
    conditions = []
    for text in _texts(extra_info.get("Filters")):
        # DuckDB applies the filter again, so read every column that the filter mentions.
        columns |= {int(index) for index in _COLUMN.findall(text) if int(index) < len(schema.fields)}
        condition = _condition(connection, text.removeprefix(_OPTIONAL), schema)
        if condition is not None:
            conditions.append(condition)
    return columns, (conditions[0] if len(conditions) == 1 else All(tuple(conditions)))


def _texts(info: Any) -> list[str]:
    """Return a list. DuckDB returns either a string or a list of strings."""
    if not info:
        return []
    return [str(text) for text in info] if isinstance(info, list) else [str(info)]


def _condition(connection: Any, text: str, schema: ViewSchema) -> Condition | None:
    """Translate a filter. Return None if stores cannot apply it."""
    parsed = msgspec.json.decode(connection.execute(_SQL_TO_TREE, [f"SELECT 1 WHERE {text}"]).fetchone()[0])
    if parsed["error"] or len(parsed["statements"]) != 1:
        return None
    return _tree_condition(parsed["statements"][0]["node"].get("where_clause", {}), schema)


def _tree_condition(node: dict[str, Any], schema: ViewSchema) -> Condition | None:
    kind, children = str(node.get("type")), node.get("children", [])
    if kind in ("CONJUNCTION_AND", "CONJUNCTION_OR"):
        parts = [_tree_condition(child, schema) for child in children]
        usable = tuple(part for part in parts if part is not None)
        if kind == "CONJUNCTION_AND":
            return All(usable) if usable else None
        return AnyOf(usable) if len(usable) == len(parts) else None
    if kind in ("OPERATOR_IS_NULL", "OPERATOR_IS_NOT_NULL"):
        field = _field(children[0], schema)
        null = IsNull(field.name) if field else None
        return Not(null) if null and kind == "OPERATOR_IS_NOT_NULL" else null
    if kind == "COMPARE_IN":
        equal = [_compare(children[0], "=", value, schema) for value in children[1:]]
        return AnyOf(tuple(condition for condition in equal if condition)) if all(equal) else None
    if kind in _OPERATORS:
        return _compare(node.get("left", {}), _OPERATORS[kind], node.get("right", {}), schema)
    return None


def _compare(left: dict[str, Any], sign: str, right: dict[str, Any], schema: ViewSchema) -> Condition | None:
    field = _field(left, schema)
    value = _value(field, right) if field else None
    return Compare(field.name, sign, value) if field and value is not None else None  # type: ignore[arg-type]


def _field(node: dict[str, Any], schema: ViewSchema) -> Field | None:
    names = node.get("column_names", [])
    match = _COLUMN.fullmatch(names[0]) if node.get("class") == "COLUMN_REF" and len(names) == 1 else None
    return schema.fields[int(match[1])] if match and int(match[1]) < len(schema.fields) else None


def _value(field: Field, node: dict[str, Any]) -> Value:
    """Return the value as rows store it. Return None if a store could compare it differently from DuckDB."""
    cast = ""
    if node.get("type") == "OPERATOR_CAST":
        cast, node = str(node.get("cast_type", {}).get("id")), node.get("child", {})
    value = node.get("value", {}).get("value") if node.get("class") == "CONSTANT" else None
    match field.kind:
        case Scalar("text") | Enum() if isinstance(value, str) and not cast and "\0" not in value:
            return value
        case Scalar("int") if isinstance(value, int) and not isinstance(value, bool) and not cast:
            return value if -_INT_MAX <= value < _INT_MAX and _is_whole(node) else None
        case Scalar("date") if (
            isinstance(value, str) and cast == "DATE" and re.fullmatch(r"\d{4}-\d\d-\d\d", value)
        ):
            return value
        case Scalar("time") if isinstance(value, str) and cast == "TIMESTAMP WITH TIME ZONE":
            try:
                return time_text(datetime.fromisoformat(value).astimezone(UTC))
            except (ValueError, OverflowError):
                return None
    return None


def _is_whole(node: dict[str, Any]) -> bool:
    # DuckDB also serializes a decimal constant as an integer (1.50 as 150). Its type distinguishes the two.
    return str(node.get("value", {}).get("type", {}).get("id")) in ("INTEGER", "BIGINT")


def _nodes(plan: Any) -> Iterator[dict[str, Any]]:
    pending = [plan]
    while pending:
        node = pending.pop()
        if isinstance(node, list):
            pending += node
        elif isinstance(node, dict):
            yield node
            pending += node.get("children", [])
