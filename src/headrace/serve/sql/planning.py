"""What a statement needs of its views, as the engine's own optimizer says: which columns, and of which rows.

The statement is explained over empty tables. What is read from the stores by that may be too much, never too little:
the engine applies every condition again.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import msgspec

from headrace.model.kinds import Choice, Field, Plain
from headrace.model.texts import time_text
from headrace.views.position import Shape
from headrace.views.question import EVERY_ROW, All, Compare, Condition, IsNull, Not
from headrace.views.question import Any as AnyOf
from headrace.views.rows import Value

__all__ = ["NO_ROW", "Need", "key_of", "needs_of"]

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
_READ = "SELECT json_serialize_sql(?::VARCHAR, skip_null := true, skip_empty := true, skip_default := true)"
_INT_MAX = 2**63


NO_ROW: Condition = AnyOf(())


@dataclass(frozen=True, slots=True)
class Need:
    columns: tuple[int, ...]
    """By place."""
    where: Condition = EVERY_ROW


def needs_of(connection: Any, sql: str, parameters: Sequence[Any], shapes: Sequence[Shape]) -> list[Need]:
    """Of each table ``plan.tN``, in their order."""
    told = connection.execute(f"EXPLAIN (FORMAT json) {sql}", list(parameters)).fetchall()
    scans: dict[int, list[tuple[set[int], Condition]]] = {}
    for node in _nodes(msgspec.json.decode(told[0][1])):
        more = node.get("extra_info", {})
        table = _TABLE.fullmatch(str(more.get("Table", "")))
        if table is not None:
            at = int(table[1])
            scans.setdefault(at, []).append(_scan(connection, more, shapes[at]))
    return [_need(shape, scans.get(at, [])) for at, shape in enumerate(shapes)]


def _need(shape: Shape, scans: list[tuple[set[int], Condition]]) -> Need:
    if not scans:
        # The optimizer has found out that there is nothing to read, but the position is told all the same.
        return Need(shape.key_places, NO_ROW)
    columns = set().union(*(some for some, _ in scans)) or {shape.key_places[0]}
    conditions = [where for _, where in scans]
    where: Condition = conditions[0] if len(conditions) == 1 else AnyOf(tuple(conditions))
    if any(one == EVERY_ROW for one in conditions):
        where = EVERY_ROW
    return Need(tuple(sorted(columns)), where)


def key_of(shape: Shape, where: Condition) -> tuple[Value, ...] | None:
    """If there can be one row only: its key."""
    parts = where.parts if isinstance(where, All) else (where,)
    equal = {one.column: one.value for one in parts if isinstance(one, Compare) and one.operator == "="}
    return tuple(equal[name] for name in shape.key) if all(name in equal for name in shape.key) else None


def _scan(connection: Any, more: dict[str, Any], shape: Shape) -> tuple[set[int], Condition]:
    columns: set[int] = set()
    for text in _texts(more.get("Projections")):
        found = _COLUMN.fullmatch(text)
        if found is None:
            return set(range(len(shape.fields))), EVERY_ROW
        columns.add(int(found[1]))
    conditions = []
    for text in _texts(more.get("Filters")):
        # Whatever else is said of it, what has these letters may need the column.
        columns |= {int(at) for at in _COLUMN.findall(text) if int(at) < len(shape.fields)}
        condition = _condition(connection, text.removeprefix(_OPTIONAL), shape)
        if condition is not None:
            conditions.append(condition)
    return columns, (conditions[0] if len(conditions) == 1 else All(tuple(conditions)))


def _texts(told: Any) -> list[str]:
    if not told:
        return []
    return [str(one) for one in told] if isinstance(told, list) else [str(told)]


def _condition(connection: Any, text: str, shape: Shape) -> Condition | None:
    """None where it is not understood."""
    told = msgspec.json.decode(connection.execute(_READ, [f"SELECT 1 WHERE {text}"]).fetchone()[0])
    if told["error"] or len(told["statements"]) != 1:
        return None
    return _of_tree(told["statements"][0]["node"].get("where_clause", {}), shape)


def _of_tree(node: dict[str, Any], shape: Shape) -> Condition | None:
    kind, children = str(node.get("type")), node.get("children", [])
    if kind in ("CONJUNCTION_AND", "CONJUNCTION_OR"):
        parts = [_of_tree(one, shape) for one in children]
        known = tuple(one for one in parts if one is not None)
        if kind == "CONJUNCTION_AND":
            return All(known) if known else None
        return AnyOf(known) if len(known) == len(parts) else None
    if kind in ("OPERATOR_IS_NULL", "OPERATOR_IS_NOT_NULL"):
        field = _field(children[0], shape)
        null = IsNull(field.name) if field else None
        return Not(null) if null and kind == "OPERATOR_IS_NOT_NULL" else null
    if kind == "COMPARE_IN":
        wanted = [_compare(children[0], "=", one, shape) for one in children[1:]]
        return AnyOf(tuple(one for one in wanted if one)) if all(wanted) else None
    if kind in _OPERATORS:
        return _compare(node.get("left", {}), _OPERATORS[kind], node.get("right", {}), shape)
    return None


def _compare(left: dict[str, Any], sign: str, right: dict[str, Any], shape: Shape) -> Condition | None:
    field = _field(left, shape)
    value = _value(field, right) if field else None
    return Compare(field.name, sign, value) if field and value is not None else None  # type: ignore[arg-type]


def _field(node: dict[str, Any], shape: Shape) -> Field | None:
    names = node.get("column_names", [])
    found = _COLUMN.fullmatch(names[0]) if node.get("class") == "COLUMN_REF" and len(names) == 1 else None
    return shape.fields[int(found[1])] if found and int(found[1]) < len(shape.fields) else None


def _value(field: Field, node: dict[str, Any]) -> Value:
    """As rows have it; None where it is not clear that stores compare it as the engine does."""
    cast = ""
    if node.get("type") == "OPERATOR_CAST":
        cast, node = str(node.get("cast_type", {}).get("id")), node.get("child", {})
    value = node.get("value", {}).get("value") if node.get("class") == "CONSTANT" else None
    match field.kind:
        case Plain("text") | Choice() if isinstance(value, str) and not cast and "\0" not in value:
            return value
        case Plain("int") if isinstance(value, int) and not isinstance(value, bool) and not cast:
            return value if -_INT_MAX <= value < _INT_MAX and _is_whole(node) else None
        case Plain("date") if (
            isinstance(value, str) and cast == "DATE" and re.fullmatch(r"\d{4}-\d\d-\d\d", value)
        ):
            return value
        case Plain("time") if isinstance(value, str) and cast == "TIMESTAMP WITH TIME ZONE":
            try:
                return time_text(datetime.fromisoformat(value).astimezone(UTC))
            except (ValueError, OverflowError):
                return None
    return None


def _is_whole(node: dict[str, Any]) -> bool:
    # A decimal constant is written as a whole number too, of its last digit.
    return str(node.get("value", {}).get("type", {}).get("id")) in ("INTEGER", "BIGINT")


def _nodes(plan: Any) -> Iterator[dict[str, Any]]:
    waiting = [plan]
    while waiting:
        node = waiting.pop()
        if isinstance(node, list):
            waiting += node
        elif isinstance(node, dict):
            yield node
            waiting += node.get("children", [])
