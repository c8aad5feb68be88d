"""The SQL of one view's table: made once per shape, used for every batch."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from functools import lru_cache

from headrace.model.kinds import Field, Plain
from headrace.views.errors import ShapeRefused
from headrace.views.position import Shape
from headrace.views.rows import Row

__all__ = ["SqliteTable", "quoted", "sqlite_table"]

_TYPES = {"int": "INTEGER", "bool": "INTEGER", "float": "REAL", "bytes": "BLOB"}
_AT_ONCE = 1_000
_KEPT = 256


class SqliteTable:
    def __init__(self, name: str, shape: Shape) -> None:
        table, names = quoted(name), [quoted(one) for one in shape.names]
        key = ", ".join(map(quoted, shape.key))
        columns = ", ".join(f"{quoted(one.name)} {_type(one)}" for one in shape.fields)
        self.name = name
        self.create = f"CREATE TABLE {table} ({columns}, PRIMARY KEY ({key})) WITHOUT ROWID"
        self.upsert = f"REPLACE INTO {table} VALUES ({', '.join('?' * len(names))})"  # noqa: S608
        gone = " AND ".join(f"{quoted(one)} = ?" for one in shape.key)
        self.delete = f"DELETE FROM {table} WHERE {gone}"  # noqa: S608
        self.select = f"SELECT {', '.join(names)} FROM {table}"  # noqa: S608
        self.select_one = f"{self.select} WHERE {gone}"
        self._by_key = f"{self.select} ORDER BY {key}"
        self._truths = [at for at, one in enumerate(shape.fields) if one.kind == Plain("bool")]

    def rows(self, connection: sqlite3.Connection) -> Iterator[Row]:
        return self.found(connection.execute(self._by_key))

    def found(self, found: sqlite3.Cursor) -> Iterator[Row]:
        """Rows out of what ``select`` has begun."""
        while some := found.fetchmany(_AT_ONCE):
            yield from map(self._row, some) if self._truths else some

    def _row(self, found: tuple[object, ...]) -> Row:
        row = list(found)
        for at in self._truths:
            row[at] = None if row[at] is None else bool(row[at])
        return tuple(row)  # type: ignore[arg-type]


@lru_cache(_KEPT)
def sqlite_table(name: str, shape: Shape) -> SqliteTable:
    """For who asks one question: made once for all of them."""
    return SqliteTable(name, shape)


def quoted(name: str) -> str:
    if "\0" in name or not name:
        raise ShapeRefused(f"{name!r} cannot name a column or a table in SQLite")
    doubled = name.replace('"', '""')
    return f'"{doubled}"'


def _type(field: Field) -> str:
    return _TYPES.get(field.kind.name, "TEXT") if isinstance(field.kind, Plain) else "TEXT"
