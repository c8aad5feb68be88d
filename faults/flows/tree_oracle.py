"""Computes in plain Python what a random flow must write: its rows, and their order in the topic.

The order: every row has coordinates, a list of integers that is compared from left to right. The first integer combines
the number of the input and the partition; the second is the offset. Some steps add an integer: a union inserts the
number of the branch right after the offset; an ``explode`` or ``unpivot`` appends the index in the list (-1 if
``explode_outer`` found an empty list). A row of a join of two streams has the coordinates of both sides.

A batch writes its rows in the order of their coordinates. Rows with equal coordinates come from one event and several
rows of a table; their JSON texts decide, and a deletion comes first. ``dropDuplicates`` keeps the first row by batch
and coordinates. Every batch with rows of a group writes the current result of the group. Among equal values, ``max_by``
chooses the row with the largest coordinates and ``min_by`` that with the smallest. If the coordinates are equal too, or
the rows come from a table, the columns are compared from left to right.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

from faults.flows.tree import (
    MINUTE,
    Aggregate,
    Compute,
    Condition,
    DropDuplicates,
    Explode,
    Filter,
    FlowTree,
    Join,
    JoinStreams,
    MarkDeleted,
    Repartition,
    Result,
    Select,
    Step,
    Stream,
    Union,
    Unpivot,
    columns_of,
)

__all__ = ["Expected", "Row", "TableAt", "event_row", "expected"]

_INPUT_STEP = 2**32
Values = dict[str, Any]
TableAt = Callable[[int], Sequence[Values]]
"""A function from the number of a batch to the rows of the table in that batch."""


@dataclass(frozen=True, slots=True)
class Row:
    batch: int
    at: tuple[int, ...]
    values: Values
    deleted: bool = False


@dataclass
class Expected:
    """The expected contents of the topic."""

    rows: dict[bytes, list[bytes | None]] = field(default_factory=dict)
    """The values of each key, in order."""
    keyless: Counter[bytes | None] = field(default_factory=Counter)
    """The values of rows without a key, which become dead letters."""


def event_row(batch: int, input_number: int, partition: int, offset: int, value: bytes) -> Row:
    """Return the row of a record of the input with this number."""
    values = json.loads(value)
    values["at"] = datetime.fromisoformat(values["at"])
    return Row(batch, (input_number * _INPUT_STEP + partition, offset), values)


def expected(tree: FlowTree, inputs: Sequence[Sequence[Row]], table_at: TableAt) -> Expected:
    rows = _Interpreter(inputs, table_at).rows_of(tree.root)
    names = list(columns_of(tree.root))
    written = [(row, None if row.deleted else _text(row.values, names)) for row in rows]
    written.sort(key=lambda pair: (pair[0].batch, pair[0].at, pair[1] or ""))
    expected = Expected()
    for row, text in written:
        value = None if text is None else text.encode()
        key = _key(row.values, tree.key)
        if key is None:
            expected.keyless[value] += 1
        else:
            expected.rows.setdefault(key, []).append(value)
    return expected


class _Interpreter:
    def __init__(self, inputs: Sequence[Sequence[Row]], table_at: TableAt) -> None:
        self._inputs = inputs
        self._table_at = table_at

    def rows_of(self, step: Step) -> list[Row]:
        match step:
            case Stream(number):
                return list(self._inputs[number])
            case Compute(child, name):
                return [_with(row, {name: _computed_value(step, row.values)}) for row in self.rows_of(child)]
            case Select(child, columns):
                return [
                    replace(row, values={name: row.values[name] for name in columns})
                    for row in self.rows_of(child)
                ]
            case Filter(child, test):
                return [row for row in self.rows_of(child) if _is_true_for(test, row.values)]
            case Explode(child):
                return [derived for row in self.rows_of(child) for derived in _explode(step, row)]
            case Unpivot(child, columns, name):
                return [
                    _with_index(_with(row, {f"{name}_of": column, name: row.values[column]}), index)
                    for row in self.rows_of(child)
                    for index, column in enumerate(columns)
                ]
            case Union(branches):
                return [
                    replace(row, at=(*row.at[:2], number, *row.at[2:]))
                    for number, branch in enumerate(branches)
                    for row in self.rows_of(branch)
                ]
            case Join(child):
                return [derived for row in self.rows_of(child) for derived in self._join(step, row)]
            case JoinStreams(left, right):
                return self._join_streams(left, right)
            case DropDuplicates(child, columns):
                return _drop_duplicates(self.rows_of(child), columns, list(columns_of(child)))
            case Repartition(child):
                return self.rows_of(child)
            case Aggregate(child):
                return _aggregate(step, self.rows_of(child))
            case MarkDeleted(child, test):
                return [replace(row, deleted=_is_true_for(test, row.values)) for row in self.rows_of(child)]

    def _join(self, join: Join, row: Row) -> Iterable[Row]:
        if join.rows is None:
            rows = [(item[join.on], item["label"], item["weight"]) for item in self._table_at(row.batch)]
        else:
            rows = list(join.rows)
        if join.pick:
            picked: dict[str, tuple[str, str, int]] = {}
            for partner_row in sorted(rows, reverse=join.pick == "last"):
                picked.setdefault(partner_row[0], partner_row)
            rows = list(picked.values())
        partners = [partner for partner in rows if partner[0] == row.values[join.on]]
        if join.how in ("left_semi", "left_anti"):
            return [row] if bool(partners) == (join.how == "left_semi") else []
        if not partners and join.how == "left":
            partners = [("", None, None)]
        names = (f"{join.name}_label", f"{join.name}_weight")
        return [_with(row, dict(zip(names, partner[1:], strict=True))) for partner in partners]

    def _join_streams(self, left: Step, right: Step) -> list[Row]:
        partners: dict[tuple[Any, Any], list[Row]] = {}
        for row in self.rows_of(right):
            partners.setdefault((row.values["item"], row.values["code"]), []).append(row)
        return [
            Row(
                max(row.batch, other.batch),
                row.at + other.at,
                row.values | {f"r_{name}": value for name, value in other.values.items()},
            )
            for row in self.rows_of(left)
            for other in partners.get((row.values["item"], row.values["code"]), ())
        ]


def _with(row: Row, values: Values) -> Row:
    return replace(row, values=row.values | values)


def _with_index(row: Row, index: int) -> Row:
    return replace(row, at=(*row.at, index))


def _computed_value(step: Compute, values: Values) -> Any:
    value, constant = values[step.column], step.constant
    if value is None:
        return None
    match step.operation:
        case "add":
            return value + constant
        case "times":
            return value * constant
        case "modulo":
            return value % constant
        case "null if even":
            return value if value % 2 else None
        case _:
            return f"{values['account']}/{value}"


def _is_true_for(test: Condition, values: Values) -> bool:
    value = values[test.column]
    return value is not None and value % test.divisor >= test.least


def _explode(step: Explode, row: Row) -> Iterable[Row]:
    parts: list[tuple[int | None, int | None]] = list(enumerate(row.values["parts"]))
    if step.outer and not parts:
        parts = [(None, None)]
    for index, part in parts:
        position = {f"{step.name}_at": index} if step.positions else {}
        yield _with_index(_with(row, position | {step.name: part}), -1 if index is None else index)


def _sort_key(row: Row, names: Sequence[str]) -> list[tuple[Any, ...]]:
    """Return the columns as a sort key, with nulls first."""
    return [() if row.values[name] is None else (row.values[name],) for name in names]


def _drop_duplicates(rows: Iterable[Row], columns: Sequence[str], names: Sequence[str]) -> list[Row]:
    first_rows: dict[tuple[Any, ...], Row] = {}
    for row in sorted(rows, key=lambda row: (row.batch, row.at, _sort_key(row, names))):
        first_rows.setdefault(tuple(row.values[name] for name in columns), row)
    return list(first_rows.values())


def _aggregate(step: Aggregate, rows: Iterable[Row]) -> list[Row]:
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        minute = (row.values["at"].replace(second=0, microsecond=0),) if step.minutes else ()
        groups.setdefault((*(row.values[name] for name in step.by), *minute), []).append(row)
    names = (*step.by, *([MINUTE] if step.minutes else []))
    results = []
    for group, group_rows in groups.items():
        for batch in sorted({row.batch for row in group_rows}):
            rows_so_far = [row for row in group_rows if row.batch <= batch]
            values = dict(zip(names, group, strict=True))
            values |= {
                result.name: _result(result, rows_so_far, list(columns_of(step.child)))
                for result in step.results
            }
            results.append(Row(batch, (), values))
    return results


def _result(result: Result, rows: Sequence[Row], names: Sequence[str]) -> Any:
    if result.function == "count":
        return len(rows)
    if result.by:
        candidates = [row for row in rows if row.values[result.by] is not None]
        if not candidates:
            return None
        choose = max if result.function == "max_by" else min
        chosen = choose(candidates, key=lambda row: (row.values[result.by], row.at, _sort_key(row, names)))
        return chosen.values[result.column]
    values = [row.values[result.column] for row in rows if row.values[result.column] is not None]
    if not values:
        return None
    return {"sum": sum, "min": min, "max": max}[result.function](values)  # type: ignore[operator]


# Encoding as in the topic


def _text(values: Values, names: Sequence[str]) -> str:
    plain = {name: _json_value(values[name]) for name in names}
    return json.dumps(plain, ensure_ascii=False, separators=(",", ":"))


def _json_value(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    return value


def _key(values: Values, key: Sequence[str]) -> bytes | None:
    if any(values[name] is None for name in key):
        return None
    if len(key) == 1:
        return str(_json_value(values[key[0]])).encode()
    return _text(values, key).encode()
