"""Two sets of rows on disk, what was derived and what was found, and how they differ, in little memory.

Columns are named by their number here, so that no name of a user's can be in the way. What cannot be proven is taken
out of both sets before they are compared, and counted.
"""

from __future__ import annotations

import hashlib
import heapq
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import msgspec

from headrace.ops.plain_rows import Column, Value
from headrace.ops.report import Difference, Report

__all__ = ["Compared", "Scratch", "Side"]

Row = tuple[Value, ...]
Side = Literal["expected", "found"]
Differing = Callable[[Row, Row], list[int]]

_CACHE_KIB = 65_536
_AT_ONCE = 10_000
_encode = msgspec.json.Encoder().encode


@dataclass(slots=True)
class Compared:
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

    def tell(self, report: Report) -> None:
        report.expected_rows = self.expected_rows
        report.expected_sha256, report.found_sha256 = self.expected_sha256, self.found_sha256
        report.missing, report.extra, report.different = self.missing, self.extra, self.different
        report.unprovable_rows += self.unprovable_rows
        report.differences = self.differences


class Scratch:
    """``expected`` and ``found``, with the same columns; to be closed, and its folder removed."""

    def __init__(self, connection: sqlite3.Connection, columns: Sequence[Column], key: Sequence[str]) -> None:
        self.connection = connection
        self.names = [name for name, _ in columns]
        self._key_places = [self.names.index(name) for name in key]
        self._keys = [f"c{place}" for place in self._key_places]
        self._columns = [f"c{place}" for place in range(len(columns))]
        self._types = [f"c{place} {type_name}" for place, (_, type_name) in enumerate(columns)]
        types = ", ".join(self._types)
        keys = ", ".join(self._keys)
        for table, more in (("found", ""), ("expected", ", by_topic INTEGER")):
            connection.execute(f"CREATE TABLE {table} ({types}{more}, PRIMARY KEY ({keys})) WITHOUT ROWID")
        for table in ("absent", "unknown", "same"):
            typed = ", ".join(f"c{place} {columns[place][1]}" for place in self._key_places)
            connection.execute(f"CREATE TABLE {table} ({typed}, PRIMARY KEY ({keys})) WITHOUT ROWID")

    @staticmethod
    def open(folder: Path) -> sqlite3.Connection:
        connection = sqlite3.connect(folder / "scratch.db", isolation_level=None, uri=True)
        # Found rows may hold anything, also what is no text.
        connection.text_factory = lambda raw: raw.decode("utf-8", "backslashreplace")
        for statement in ("journal_mode = OFF", "synchronous = OFF", f"cache_size = -{_CACHE_KIB}"):
            connection.execute(f"PRAGMA {statement}")
        return connection

    def close(self) -> None:
        self.connection.close()

    # What goes in

    def put(self, side: Side, rows: Iterable[Row]) -> None:
        marks = ", ".join("?" * len(self._columns))
        more = ", 0" if side == "expected" else ""
        self._fill(f"REPLACE INTO {side} VALUES ({marks}{more})", rows)  # noqa: S608

    def expect_by_topic(self, rows: Iterable[Row]) -> None:
        """Rows that only the flow's topic tells of: what differs from them is wrong, what equals them not yet right."""
        marks = ", ".join("?" * len(self._columns))
        self._fill(f"REPLACE INTO expected VALUES ({marks}, 1)", rows)  # noqa: S608

    def expect_absent(self, keys: Iterable[Row]) -> None:
        self._fill(f"REPLACE INTO absent VALUES ({', '.join('?' * len(self._keys))})", keys)  # noqa: S608

    def expect_unknown(self, keys: Iterable[Row]) -> None:
        """Keys of which nothing can be said."""
        self._fill(f"REPLACE INTO unknown VALUES ({', '.join('?' * len(self._keys))})", keys)  # noqa: S608

    def _fill(self, statement: str, rows: Iterable[Row]) -> None:
        self.connection.execute("BEGIN")
        self.connection.executemany(statement, rows)
        self.connection.execute("COMMIT")

    # What goes in as a changelog, of which the last change of each key counts

    def begin_fold(self) -> None:
        keys = ", ".join(self._keys)
        self.connection.execute(
            f"CREATE TABLE changes (part INTEGER, batch INTEGER, place INTEGER, gone INTEGER, {', '.join(self._types)},"
            f" PRIMARY KEY (part, {keys})) WITHOUT ROWID"
        )

    def fold(self, changes: Iterable[tuple[Value, ...]]) -> None:
        """Partition, batch, offset, whether it deletes, and the columns; of each partition in the order of the log."""
        marks = ", ".join("?" * (4 + len(self._columns)))
        self._fill(f"REPLACE INTO changes VALUES ({marks})", changes)  # noqa: S608

    def widened(self, key: Row) -> Row:
        """A row of which only the key is known."""
        row: list[Value] = [None] * len(self._columns)
        for place, value in zip(self._key_places, key, strict=True):
            row[place] = value
        return tuple(row)

    def end_fold(self, *, ordered: bool) -> None:
        """What is left is expected. A key that is in several partitions is so by the latest batch, if there are any
        (``ordered``); else nobody knows which change came last.
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

    def knows(self, key: Row) -> bool:
        """Whether something is expected of the key, or that it is gone."""
        given = " AND ".join(f"{name} = ?" for name in self._keys)
        found = self.connection.execute(
            f"SELECT 1 FROM expected WHERE {given} UNION ALL SELECT 1 FROM absent WHERE {given}"  # noqa: S608
            f" UNION ALL SELECT 1 FROM unknown WHERE {given}",
            (*key, *key, *key),
        )
        return found.fetchone() is not None

    # What cannot be proven

    def set_aside(self, condition: str, values: Sequence[Value] = ()) -> int:
        """Take out of both sets; how many rows of the found ones it were."""
        self.connection.execute(f"DELETE FROM expected WHERE {condition}", values)  # noqa: S608
        return self.connection.execute(f"DELETE FROM found WHERE {condition}", values).rowcount  # noqa: S608

    def set_aside_up_to(self, name: str, last: str) -> int:
        return self.set_aside(f"c{self.names.index(name)} <= ?", (last,))

    def set_aside_underived(self) -> int:
        """What was found and is not derived, unless it is known to be gone."""
        keys = ", ".join(self._keys)
        return self.connection.execute(
            f"DELETE FROM found WHERE ({keys}) NOT IN (SELECT {keys} FROM expected)"  # noqa: S608
            f" AND ({keys}) NOT IN (SELECT {keys} FROM absent)"
        ).rowcount

    def _set_aside_unsure(self) -> int:
        keys = ", ".join(self._keys)
        unknown = self.count("unknown")
        self.set_aside(f"({keys}) IN (SELECT {keys} FROM unknown)")  # noqa: S608
        # What the topic tells and the store has alike.
        self.connection.execute(
            f"INSERT INTO same SELECT {', '.join('e.' + one for one in self._keys)} FROM expected e JOIN found f"  # noqa: S608
            f" ON {self._joined('e', 'f')} WHERE e.by_topic AND {self._alike('e', 'f')}"
        )
        alike = self.set_aside(f"({keys}) IN (SELECT {keys} FROM same)")  # noqa: S608
        self.connection.execute("DELETE FROM same")
        return unknown + alike

    # How they differ

    def compare(self, *, sample: int, differing: Differing | None = None) -> Compared:
        """``differing`` is asked about rows that are not equal to the letter: which columns do differ, if any."""
        made = Compared(unprovable_rows=self._set_aside_unsure())
        made.expected_rows = self.count("expected")
        first: list[tuple[Any, Difference]] = []
        for kind, differences in (
            ("missing", self._one_sided("expected", "found", "missing")),
            ("extra", self._one_sided("found", "expected", "extra")),
            ("different", self._different(differing or _to_the_letter)),
        ):
            kept = list(islice(differences, sample))
            setattr(made, kind, len(kept) + sum(1 for _ in differences))
            first += kept
        self._make_alike()
        made.differences = [one for _, one in heapq.nsmallest(sample, first, key=lambda pair: pair[0])]
        made.expected_sha256, made.found_sha256 = self._sha256("expected"), self._sha256("found")
        return made

    def _one_sided(
        self, one: Side, other: Side, kind: Literal["missing", "extra"]
    ) -> Iterator[tuple[Any, Difference]]:
        columns = ", ".join(f"o.{name}" for name in self._columns)
        rows = self.connection.execute(
            f"SELECT {columns} FROM {one} o LEFT JOIN {other} t ON {self._joined('o', 't')}"  # noqa: S608
            f" WHERE t.{self._keys[0]} IS NULL"
        )
        for row in rows:
            told = self._told(row)
            expected, found = (told, None) if one == "expected" else (None, told)
            yield self._order(row), Difference(kind, self._key_of(row), expected, found)

    def _different(self, differing: Differing) -> Iterator[tuple[Any, Difference]]:
        columns = ", ".join(f"{side}.{name}" for side in "ef" for name in self._columns)
        rows = self.connection.execute(
            f"SELECT {columns} FROM expected e JOIN found f ON {self._joined('e', 'f')}"  # noqa: S608
            f" WHERE NOT ({self._alike('e', 'f')})"
        )
        alike: list[Row] = []
        width = len(self._columns)
        for both in rows:
            expected, found = both[:width], both[width:]
            places = differing(expected, found)
            if not places:
                alike.append(tuple(expected[place] for place in self._key_places))
                if len(alike) >= _AT_ONCE:
                    self._note_same(alike)
                continue
            names = [self.names[place] for place in places]
            key = self._key_of(expected)
            difference = Difference("different", key, self._told(expected), self._told(found), names)
            yield self._order(expected), difference
        self._note_same(alike)

    def _note_same(self, keys: list[Row]) -> None:
        self.connection.executemany(f"INSERT INTO same VALUES ({', '.join('?' * len(self._keys))})", keys)  # noqa: S608
        keys.clear()

    def _make_alike(self) -> None:
        """Rows that say the same in other words count as equal, for the hash too."""
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

    def _joined(self, one: str, other: str) -> str:
        return " AND ".join(f"{one}.{name} = {other}.{name}" for name in self._keys)

    def _alike(self, one: str, other: str) -> str:
        # A number and the text of it are not the same, though SQLite may say so of columns of different types.
        return " AND ".join(f"{one}.{name} IS {other}.{name}" for name in self._columns)

    # For a reader

    def _key_of(self, row: Row) -> dict[str, Any]:
        return {self.names[place]: _shown(row[place]) for place in self._key_places}

    def _told(self, row: Row) -> dict[str, Any]:
        return {name: _shown(value) for name, value in zip(self.names, row, strict=True)}

    def _order(self, row: Row) -> Any:
        """As SQLite sorts: numbers, text, bytes."""
        return tuple(_rank(row[place]) for place in self._key_places)


def _to_the_letter(expected: Row, found: Row) -> list[int]:
    pairs = enumerate(zip(expected, found, strict=True))
    return [place for place, (one, other) in pairs if one != other or type(one) is not type(other)]


def _rank(value: Value) -> tuple[int, Any]:
    match value:
        case None:
            return 0, 0
        case int() | float():
            return 1, value
        case str():
            return 2, value
    return 3, value


def _shown(value: Value) -> Any:
    """As JSON can tell it."""
    if isinstance(value, float) and value in (float("inf"), float("-inf")):
        return "Infinity" if value > 0 else "-Infinity"
    return value
