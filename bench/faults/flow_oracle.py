"""What a drawn flow means, worked out in plain Python: its rows, and the order in which a topic must have them.

The rule of order. Every row has coordinates, integers that are compared one after the other: number of the input and
partition, offset, then one for each union and ``explode`` on its way. A union puts the number of the branch right
behind the offset, an ``explode`` the place in the list at the end (-1 where ``explode_outer`` found an empty list),
and so does ``unpivot``. A join of two streams has the coordinates of both sides. A batch writes its rows in the order
of their coordinates; rows with the same, of one event and several rows of a table, in the order of their JSON text, a
deletion first. ``dropDuplicates`` keeps the first row by batch and coordinates. A group is written by every batch that
brings rows for it, as it is then; among equals ``max_by`` takes the largest coordinates and ``min_by`` the smallest.
Where rows with the same coordinates meet there, and among rows of a table, columns are compared from left to right.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

from bench.faults.flow_tree import (
    MINUTE,
    Aggregate,
    Compute,
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
    Test,
    Union,
    Unpivot,
    columns_of,
)

__all__ = ["Expected", "Row", "TableAt", "event_row", "expected"]

_INPUT_STEP = 2**32
Values = dict[str, Any]
TableAt = Callable[[int], Sequence[Values]]
"""The rows of the table that a batch sees."""


@dataclass(frozen=True, slots=True)
class Row:
    batch: int
    at: tuple[int, ...]
    values: Values
    deleted: bool = False


@dataclass
class Expected:
    """What the topic must hold."""

    rows: dict[bytes, list[bytes | None]] = field(default_factory=dict)
    """The values of each key, in their order."""
    keyless: Counter[bytes | None] = field(default_factory=Counter)
    """Values of rows without a key: they are dead letters."""


def event_row(batch: int, number: int, partition: int, offset: int, value: bytes) -> Row:
    """A record of the input with this number."""
    values = json.loads(value)
    values["at"] = datetime.fromisoformat(values["at"])
    return Row(batch, (number * _INPUT_STEP + partition, offset), values)


def expected(tree: FlowTree, inputs: Sequence[Sequence[Row]], table_at: TableAt) -> Expected:
    rows = _Meaning(inputs, table_at).of(tree.root)
    names = list(columns_of(tree.root))
    written = [(row, None if row.deleted else _text(row.values, names)) for row in rows]
    written.sort(key=lambda one: (one[0].batch, one[0].at, one[1] or ""))
    found = Expected()
    for row, text in written:
        value = None if text is None else text.encode()
        key = _key(row.values, tree.key)
        if key is None:
            found.keyless[value] += 1
        else:
            found.rows.setdefault(key, []).append(value)
    return found


class _Meaning:
    def __init__(self, inputs: Sequence[Sequence[Row]], table_at: TableAt) -> None:
        self._inputs = inputs
        self._table_at = table_at

    def of(self, step: Step) -> list[Row]:
        match step:
            case Stream(number):
                return list(self._inputs[number])
            case Compute(child, name):
                return [_with(row, {name: _computed(step, row.values)}) for row in self.of(child)]
            case Select(child, columns):
                return [
                    replace(row, values={name: row.values[name] for name in columns})
                    for row in self.of(child)
                ]
            case Filter(child, test):
                return [row for row in self.of(child) if _passes(test, row.values)]
            case Explode(child):
                return [made for row in self.of(child) for made in _exploded(step, row)]
            case Unpivot(child, columns, name):
                return [
                    _appended(_with(row, {f"{name}_of": column, name: row.values[column]}), place)
                    for row in self.of(child)
                    for place, column in enumerate(columns)
                ]
            case Union(branches):
                return [
                    replace(row, at=(*row.at[:2], number, *row.at[2:]))
                    for number, branch in enumerate(branches)
                    for row in self.of(branch)
                ]
            case Join(child):
                return [made for row in self.of(child) for made in self._joined(step, row)]
            case JoinStreams(left, right):
                return self._pairs(left, right)
            case DropDuplicates(child, columns):
                return _firsts(self.of(child), columns, list(columns_of(child)))
            case Repartition(child):
                return self.of(child)
            case Aggregate(child):
                return _aggregated(step, self.of(child))
            case MarkDeleted(child, test):
                return [replace(row, deleted=_passes(test, row.values)) for row in self.of(child)]

    def _joined(self, join: Join, row: Row) -> Iterable[Row]:
        if join.rows is None:
            rows = [(one[join.on], one["label"], one["weight"]) for one in self._table_at(row.batch)]
        else:
            rows = list(join.rows)
        if join.one:
            kept: dict[str, tuple[str, str, int]] = {}
            for one in sorted(rows, reverse=join.one == "last"):
                kept.setdefault(one[0], one)
            rows = list(kept.values())
        partners = [one for one in rows if one[0] == row.values[join.on]]
        if join.how in ("left_semi", "left_anti"):
            return [row] if bool(partners) == (join.how == "left_semi") else []
        if not partners and join.how == "left":
            partners = [("", None, None)]  # type: ignore[list-item]
        names = (f"{join.name}_label", f"{join.name}_weight")
        return [_with(row, dict(zip(names, one[1:], strict=True))) for one in partners]

    def _pairs(self, left: Step, right: Step) -> list[Row]:
        partners: dict[tuple[Any, Any], list[Row]] = {}
        for row in self.of(right):
            partners.setdefault((row.values["item"], row.values["code"]), []).append(row)
        return [
            Row(
                max(one.batch, other.batch),
                one.at + other.at,
                one.values | {f"r_{name}": value for name, value in other.values.items()},
            )
            for one in self.of(left)
            for other in partners.get((one.values["item"], one.values["code"]), ())
        ]


def _with(row: Row, values: Values) -> Row:
    return replace(row, values=row.values | values)


def _appended(row: Row, place: int) -> Row:
    return replace(row, at=(*row.at, place))


def _computed(step: Compute, values: Values) -> Any:
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


def _passes(test: Test, values: Values) -> bool:
    value = values[test.column]
    return value is not None and value % test.divisor >= test.least


def _exploded(step: Explode, row: Row) -> Iterable[Row]:
    parts: list[tuple[int | None, int | None]] = list(enumerate(row.values["parts"]))
    if step.outer and not parts:
        parts = [(None, None)]
    for place, part in parts:
        position = {f"{step.name}_at": place} if step.positions else {}
        yield _appended(_with(row, position | {step.name: part}), -1 if place is None else place)


def _compared(row: Row, names: Sequence[str]) -> list[tuple[Any, ...]]:
    """The columns, for an order in which nulls come first."""
    return [() if row.values[name] is None else (row.values[name],) for name in names]


def _firsts(rows: Iterable[Row], columns: Sequence[str], names: Sequence[str]) -> list[Row]:
    kept: dict[tuple[Any, ...], Row] = {}
    for row in sorted(rows, key=lambda one: (one.batch, one.at, _compared(one, names))):
        kept.setdefault(tuple(row.values[name] for name in columns), row)
    return list(kept.values())


def _aggregated(step: Aggregate, rows: Iterable[Row]) -> list[Row]:
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        minute = (row.values["at"].replace(second=0, microsecond=0),) if step.minutes else ()
        groups.setdefault((*(row.values[name] for name in step.by), *minute), []).append(row)
    names = (*step.by, *([MINUTE] if step.minutes else []))
    found = []
    for group, members in groups.items():
        for batch in sorted({row.batch for row in members}):
            so_far = [row for row in members if row.batch <= batch]
            values = dict(zip(names, group, strict=True))
            values |= {one.name: _result(one, so_far, list(columns_of(step.child))) for one in step.results}
            found.append(Row(batch, (), values))
    return found


def _result(result: Result, rows: Sequence[Row], names: Sequence[str]) -> Any:
    if result.function == "count":
        return len(rows)
    if result.by:
        compared = [row for row in rows if row.values[result.by] is not None]
        if not compared:
            return None
        choose = max if result.function == "max_by" else min
        chosen = choose(compared, key=lambda row: (row.values[result.by], row.at, _compared(row, names)))
        return chosen.values[result.column]
    values = [row.values[result.column] for row in rows if row.values[result.column] is not None]
    if not values:
        return None
    return {"sum": sum, "min": min, "max": max}[result.function](values)  # type: ignore[operator]


# As the topic has it


def _text(values: Values, names: Sequence[str]) -> str:
    plain = {name: _plain(values[name]) for name in names}
    return json.dumps(plain, ensure_ascii=False, separators=(",", ":"))


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    return value


def _key(values: Values, key: Sequence[str]) -> bytes | None:
    if any(values[name] is None for name in key):
        return None
    if len(key) == 1:
        return str(_plain(values[key[0]])).encode()
    return _text(values, key).encode()
