"""Compares the derived rows with the rows found in a store. Both sets are on disk, so little memory is needed.

Columns are named by number, so they cannot collide with other names. Unprovable rows are counted and removed from both
sets before the comparison.

``RowEquality`` decides whether two rows with different text are equal. The same JSON value can be written in several
ways, and lists, maps and records are JSON. The sum of floats depends on the order of its terms. If a flow adds batch by
batch, the last digit can differ from a sum of all rows at once. So floats of an aggregation count as equal if they
differ by at most a billionth of their value or by at most 1e-9. The second limit is for sums near zero, where terms
that cancel out leave rounding errors. All other values must be exactly equal.
"""

from __future__ import annotations

import hashlib
import heapq
import json
import math
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import msgspec

from headrace.model.kinds import Field, Kind, List, Map, Record, Scalar
from headrace.ops.verify.plain_rows import Column, Value
from headrace.ops.verify.report import Difference, Report

__all__ = ["Comparison", "RowEquality", "Scratch", "Side"]


Row = tuple[Value, ...]
Side = Literal["expected", "found"]
FindDifferingColumns = Callable[[Row, Row], list[int]]

_CACHE_KIB = 65_536
_ROWS_PER_STATEMENT = 10_000
_encode = msgspec.json.Encoder().encode


@dataclass(slots=True)
class Comparison:
    expected_rows: int = 0
    expected_sha256: str = ""
    found_sha256: str = ""
    missing: int = 0
    extra: int = 0
    different: int = 0
    unprovable_rows: int = 0
    differences: list[Difference] = field(default_factory=list)

    @property
    def differs(self) -> bool:
        return bool(self.missing or self.extra or self.different)

    def add_to(self, report: Report) -> None:
        report.expected_rows = self.expected_rows
        report.expected_sha256, report.found_sha256 = self.expected_sha256, self.found_sha256
        report.missing, report.extra, report.different = self.missing, self.extra, self.different
        report.unprovable_rows += self.unprovable_rows
        report.differences = self.differences


class Scratch:
    """A SQLite file with the tables ``expected`` and ``found``. The caller closes it and removes its folder."""

    def __init__(self, connection: sqlite3.Connection, columns: Sequence[Column], key: Sequence[str]) -> None:
        self.connection = connection
        self.names = [name for name, _ in columns]
        self._key_indexes = [self.names.index(name) for name in key]
        self._keys = [f"c{index}" for index in self._key_indexes]
        self._columns = [f"c{index}" for index in range(len(columns))]
        self._types = [f"c{index} {type_name}" for index, (_, type_name) in enumerate(columns)]
        types = ", ".join(self._types)
        keys = ", ".join(self._keys)
        for table, extra_column in (("found", ""), ("expected", ", by_topic INTEGER")):
            connection.execute(
                f"CREATE TABLE {table} ({types}{extra_column}, PRIMARY KEY ({keys})) WITHOUT ROWID"
            )
        for table in ("absent", "unknown", "same"):
            key_types = ", ".join(f"c{index} {columns[index][1]}" for index in self._key_indexes)
            connection.execute(f"CREATE TABLE {table} ({key_types}, PRIMARY KEY ({keys})) WITHOUT ROWID")

    @staticmethod
    def open(folder: Path) -> sqlite3.Connection:
        connection = sqlite3.connect(folder / "scratch.db", isolation_level=None, uri=True)
        # Found rows can contain text that is not UTF-8.
        connection.text_factory = lambda raw: raw.decode("utf-8", "backslashreplace")
        for statement in ("journal_mode = OFF", "synchronous = OFF", f"cache_size = -{_CACHE_KIB}"):
            connection.execute(f"PRAGMA {statement}")
        return connection

    def close(self) -> None:
        self.connection.close()

    # Input

    def put(self, side: Side, rows: Iterable[Row]) -> None:
        placeholders = ", ".join("?" * len(self._columns))
        by_topic = ", 0" if side == "expected" else ""
        self._fill(f"REPLACE INTO {side} VALUES ({placeholders}{by_topic})", rows)  # noqa: S608

    def expect_by_topic(self, rows: Iterable[Row]) -> None:
        """Add expected rows that come from the flow's topic and were not derived. A different row in the store is
        wrong. An equal row in the store is still not proven.
        """
        placeholders = ", ".join("?" * len(self._columns))
        self._fill(f"REPLACE INTO expected VALUES ({placeholders}, 1)", rows)  # noqa: S608

    def expect_absent(self, keys: Iterable[Row]) -> None:
        self._fill(f"REPLACE INTO absent VALUES ({', '.join('?' * len(self._keys))})", keys)  # noqa: S608

    def expect_unknown(self, keys: Iterable[Row]) -> None:
        """Add keys whose expected row is unknown."""
        self._fill(f"REPLACE INTO unknown VALUES ({', '.join('?' * len(self._keys))})", keys)  # noqa: S608

    def _fill(self, statement: str, rows: Iterable[Row]) -> None:
        self.connection.execute("BEGIN")
        self.connection.executemany(statement, rows)
        self.connection.execute("COMMIT")

    # Input as a changelog: the last change of each key is the row

    def begin_fold(self) -> None:
        keys = ", ".join(self._keys)
        self.connection.execute(
            f"CREATE TABLE changes (part INTEGER, batch INTEGER, place INTEGER, gone INTEGER, {', '.join(self._types)},"
            f" PRIMARY KEY (part, {keys})) WITHOUT ROWID"
        )

    def fold(self, changes: Iterable[tuple[Value, ...]]) -> None:
        """Add changes, each partition in the order of the log. A change has partition, batch, offset, whether it is a
        deletion, and the columns.
        """
        placeholders = ", ".join("?" * (4 + len(self._columns)))
        self._fill(f"REPLACE INTO changes VALUES ({placeholders})", changes)  # noqa: S608

    def row_of_key(self, key: Row) -> Row:
        """Return a row that has only the key columns."""
        row: list[Value] = [None] * len(self._columns)
        for index, value in zip(self._key_indexes, key, strict=True):
            row[index] = value
        return tuple(row)

    def end_fold(self, *, ordered: bool) -> None:
        """Store the last change of each key as the expected rows. If a key has changes in several partitions, the
        change in the latest batch is the last (``ordered``). Without batches, the key's row is unknown.
        """
        keys, columns = ", ".join(self._keys), ", ".join(self._columns)
        if not ordered:
            self.connection.execute(
                f"INSERT INTO unknown SELECT {keys} FROM changes GROUP BY {keys} HAVING count(*) > 1"  # noqa: S608
            )
        last = (
            f"SELECT *, row_number() OVER (PARTITION BY {keys} ORDER BY batch DESC, part DESC, place DESC) AS back"  # noqa: S608
            " FROM changes"
        )
        self.connection.execute(
            f"INSERT INTO expected SELECT {columns}, 0 FROM ({last}) WHERE back = 1 AND NOT gone"  # noqa: S608
        )
        self.connection.execute(
            f"INSERT INTO absent SELECT {keys} FROM ({last}) WHERE back = 1 AND gone"  # noqa: S608
        )
        self.connection.execute("DROP TABLE changes")

    def has_key(self, key: Row) -> bool:
        """Whether the key is expected, deleted or unknown."""
        same_key = " AND ".join(f"{name} = ?" for name in self._keys)
        found = self.connection.execute(
            f"SELECT 1 FROM expected WHERE {same_key} UNION ALL SELECT 1 FROM absent WHERE {same_key}"  # noqa: S608
            f" UNION ALL SELECT 1 FROM unknown WHERE {same_key}",
            (*key, *key, *key),
        )
        return found.fetchone() is not None

    # Unprovable rows

    def exclude(self, condition: str, values: Sequence[Value] = ()) -> int:
        """Remove rows from both sets. Return how many found rows were removed."""
        self.connection.execute(f"DELETE FROM expected WHERE {condition}", values)  # noqa: S608
        return self.connection.execute(f"DELETE FROM found WHERE {condition}", values).rowcount  # noqa: S608

    def exclude_up_to(self, name: str, last: str) -> int:
        return self.exclude(f"c{self.names.index(name)} <= ?", (last,))

    def exclude_rows_not_derived(self) -> int:
        """Remove found rows that were not derived, unless the log deletes their key."""
        keys = ", ".join(self._keys)
        return self.connection.execute(
            f"DELETE FROM found WHERE ({keys}) NOT IN (SELECT {keys} FROM expected)"  # noqa: S608
            f" AND ({keys}) NOT IN (SELECT {keys} FROM absent)"
        ).rowcount

    def _exclude_unprovable(self) -> int:
        keys = ", ".join(self._keys)
        unknown = self.count("unknown")
        self.exclude(f"({keys}) IN (SELECT {keys} FROM unknown)")  # noqa: S608
        # Find rows that are the same in the topic and in the store.
        self.connection.execute(
            f"INSERT INTO same SELECT {', '.join('e.' + name for name in self._keys)} FROM expected e JOIN found f"  # noqa: S608
            f" ON {self._joined('e', 'f')} WHERE e.by_topic AND {self._equal('e', 'f')}"
        )
        equal = self.exclude(f"({keys}) IN (SELECT {keys} FROM same)")  # noqa: S608
        self.connection.execute("DELETE FROM same")
        return unknown + equal

    # Comparison

    def compare(self, *, sample: int, differing: FindDifferingColumns | None = None) -> Comparison:
        """Compare both sets. ``differing`` receives two rows with different text, and returns the columns whose values
        differ.
        """
        comparison = Comparison(unprovable_rows=self._exclude_unprovable())
        comparison.expected_rows = self.count("expected")
        first: list[tuple[Any, Difference]] = []
        for kind, differences in (
            ("missing", self._one_sided("expected", "found", "missing")),
            ("extra", self._one_sided("found", "expected", "extra")),
            ("different", self._different(differing or _differing_texts)),
        ):
            sampled = list(islice(differences, sample))
            setattr(comparison, kind, len(sampled) + sum(1 for _ in differences))
            first += sampled
        self._normalize_equal()
        comparison.differences = [
            difference for _, difference in heapq.nsmallest(sample, first, key=lambda pair: pair[0])
        ]
        comparison.expected_sha256, comparison.found_sha256 = self._sha256("expected"), self._sha256("found")
        return comparison

    def _one_sided(
        self, side: Side, other: Side, kind: Literal["missing", "extra"]
    ) -> Iterator[tuple[Any, Difference]]:
        columns = ", ".join(f"s.{name}" for name in self._columns)
        rows = self.connection.execute(
            f"SELECT {columns} FROM {side} s LEFT JOIN {other} o ON {self._joined('s', 'o')}"  # noqa: S608
            f" WHERE o.{self._keys[0]} IS NULL"
        )
        for row in rows:
            values = self._values(row)
            expected, found = (values, None) if side == "expected" else (None, values)
            yield self._order(row), Difference(kind, self._key_of(row), expected, found)

    def _different(self, differing: FindDifferingColumns) -> Iterator[tuple[Any, Difference]]:
        columns = ", ".join(f"{side}.{name}" for side in "ef" for name in self._columns)
        rows = self.connection.execute(
            f"SELECT {columns} FROM expected e JOIN found f ON {self._joined('e', 'f')}"  # noqa: S608
            f" WHERE NOT ({self._equal('e', 'f')})"
        )
        equal: list[Row] = []
        width = len(self._columns)
        for both in rows:
            expected, found = both[:width], both[width:]
            columns_that_differ = differing(expected, found)
            if not columns_that_differ:
                equal.append(tuple(expected[index] for index in self._key_indexes))
                if len(equal) >= _ROWS_PER_STATEMENT:
                    self._add_equal(equal)
                continue
            names = [self.names[index] for index in columns_that_differ]
            key = self._key_of(expected)
            difference = Difference("different", key, self._values(expected), self._values(found), names)
            yield self._order(expected), difference
        self._add_equal(equal)

    def _add_equal(self, keys: list[Row]) -> None:
        self.connection.executemany(f"INSERT INTO same VALUES ({', '.join('?' * len(self._keys))})", keys)  # noqa: S608
        keys.clear()

    def _normalize_equal(self) -> None:
        """Replace found rows that are equal but have another text by the expected rows, so that the hashes agree."""
        keys, columns = ", ".join(self._keys), ", ".join(self._columns)
        self.connection.execute(
            f"REPLACE INTO found SELECT {columns} FROM expected WHERE ({keys}) IN (SELECT {keys} FROM same)"  # noqa: S608
        )

    def _sha256(self, side: Side) -> str:
        digest = hashlib.sha256()
        columns = ", ".join(self._columns)
        rows = self.connection.execute(f"SELECT {columns} FROM {side} ORDER BY {', '.join(self._keys)}")  # noqa: S608
        for row in rows:
            digest.update(_encode(row))
            digest.update(b"\n")
        return digest.hexdigest()

    def count(self, table: str) -> int:
        return int(self.connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0])  # noqa: S608

    def _joined(self, left: str, right: str) -> str:
        return " AND ".join(f"{left}.{name} = {right}.{name}" for name in self._keys)

    def _equal(self, left: str, right: str) -> str:
        # Use IS instead of =, because two nulls must be equal.
        return " AND ".join(f"{left}.{name} IS {right}.{name}" for name in self._columns)

    # Output

    def _key_of(self, row: Row) -> dict[str, Any]:
        return {self.names[index]: _json_value(row[index]) for index in self._key_indexes}

    def _values(self, row: Row) -> dict[str, Any]:
        return {name: _json_value(value) for name, value in zip(self.names, row, strict=True)}

    def _order(self, row: Row) -> Any:
        """Return a sort key with SQLite's order: numbers, text, bytes."""
        return tuple(_rank(row[index]) for index in self._key_indexes)


def _differing_texts(expected: Row, found: Row) -> list[int]:
    pairs = enumerate(zip(expected, found, strict=True))
    return [index for index, (left, right) in pairs if left != right or type(left) is not type(right)]


def _rank(value: Value) -> tuple[int, Any]:
    match value:
        case None:
            return 0, 0
        case int() | float():
            return 1, value
        case str():
            return 2, value
    return 3, value


def _json_value(value: Value) -> Any:
    """Convert infinite numbers to strings, because JSON has no infinite numbers."""
    if isinstance(value, float) and value in (float("inf"), float("-inf")):
        return "Infinity" if value > 0 else "-Infinity"
    return value


_TOLERANCE = 1e-9
_NUMBERS = (int, float, Decimal)


class RowEquality:
    def __init__(self, fields: Sequence[Field], *, is_aggregation: bool) -> None:
        self._kinds = [field.kind for field in fields]
        self._row_kind = Record(tuple(fields))
        self._is_aggregation = is_aggregation

    def differing_columns(self, expected: Row, found: Row) -> list[int]:
        """Return the indexes of the columns that differ."""
        return [
            index
            for index, (kind, left, right) in enumerate(zip(self._kinds, expected, found, strict=True))
            if (left != right or type(left) is not type(right)) and not self._equal_columns(kind, left, right)
        ]

    def _equal_columns(self, kind: Kind, expected: Value, found: Value) -> bool:
        if isinstance(kind, (List, Map, Record)):
            return self._equal_json(kind, expected, found)
        return kind == Scalar("float") and self._is_close(expected, found)

    def differing_values(self, expected: Row, found: Row) -> list[int]:
        """Like ``differing_columns``, for rows of key and value in the topic's form."""
        return [] if self._equal_json(self._row_kind, expected[1], found[1]) else [1]

    def _equal_json(self, kind: Kind, expected: Any, found: Any) -> bool:
        try:
            first, second = (json.loads(text, parse_float=Decimal) for text in (expected, found))
        except (TypeError, ValueError, RecursionError):
            return False
        return self._equal_values(kind, first, second)

    def _equal_values(self, kind: Kind, expected: Any, found: Any) -> bool:
        if expected is None or found is None or isinstance(expected, bool) or isinstance(found, bool):
            return expected is found
        match kind:
            case Record(fields) if isinstance(expected, dict) and isinstance(found, dict):
                known = {field.name: field.kind for field in fields}
                return expected.keys() == found.keys() and all(
                    name in known and self._equal_values(known[name], expected[name], found[name])
                    for name in expected
                )
            case Map(value_kind) if isinstance(expected, dict) and isinstance(found, dict):
                return expected.keys() == found.keys() and all(
                    self._equal_values(value_kind, expected[name], found[name]) for name in expected
                )
            case List(item_kind) if isinstance(expected, list) and isinstance(found, list):
                return len(expected) == len(found) and all(
                    self._equal_values(item_kind, first, second)
                    for first, second in zip(expected, found, strict=True)
                )
            case Scalar("float"):
                return _equal_floats(expected, found) or self._is_close(expected, found)
        return bool(expected == found)

    def _is_close(self, expected: Any, found: Any) -> bool:
        if not self._is_aggregation or not isinstance(expected, _NUMBERS) or not isinstance(found, _NUMBERS):
            return False
        return math.isclose(float(expected), float(found), rel_tol=_TOLERANCE, abs_tol=_TOLERANCE)


def _equal_floats(expected: Any, found: Any) -> bool:
    """Compare as floats, because a float can be written in several ways: 5e-324 and 4.9E-324 are equal."""
    if not isinstance(expected, _NUMBERS) or not isinstance(found, _NUMBERS):
        return bool(expected == found)
    return float(expected) == float(found)
