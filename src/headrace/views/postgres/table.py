"""The SQL of one view's table: made once per shape, used for every batch.

Changes come in bulk: all of a batch is copied into a temporary table, which is empty again at the end of the
transaction, and from there two statements delete and upsert. Where all keys seem to be new, as while a view of events
is filled, rows are copied to their place at once, which is faster; if one of them is there after all, nothing of that
counts, and the batch goes the other way.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import psycopg

from headrace.model.kinds import Field, Plain
from headrace.views.changes import Changes
from headrace.views.position import Shape
from headrace.views.postgres.columns import column_type, copied, expect_room, plain_row, quoted, selected
from headrace.views.rows import Row

__all__ = ["PostgresTable", "clipped", "column_of"]

_NAME_CHARS_MAX = 63
_AT_ONCE = 1_000
_REST_MAX = 64
_GONE = Field("gone", Plain("bool"), False)


def clipped(name: str) -> str:
    """A name that the server does not cut off: a long one ends in a hash of the whole."""
    if len(name) <= _NAME_CHARS_MAX:
        return name
    return f"{name[:54]}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"


def column_of(field: Field, key: Sequence[str]) -> str:
    """Its declaration."""
    by_bytes = ' COLLATE "C"' if field.name in key and column_type(field) == "text" else ""
    return f"{quoted(field.name)} {column_type(field)}{by_bytes}"


class PostgresTable:
    """``straight_from`` says how many rows are worth the try to put them in their place at once."""

    def __init__(self, schema: str, name: str, shape: Shape, *, straight_from: int = 100) -> None:
        self._straight_from = straight_from
        self.name = name
        self.shape = shape
        self.full = f"{quoted(schema)}.{quoted(name)}"
        self.columns = ", ".join(map(quoted, shape.names))
        self.key = ", ".join(map(quoted, shape.key))
        self._places = shape.key_places
        stage = f"_headrace_stage_{hashlib.sha256(shape.tell().encode()).hexdigest()[:16]}"
        self._stage = f"pg_temp.{quoted(stage)}"
        # Any name that is not a column's.
        self._gone = quoted(next(one for n in itertools.count() if (one := f"gone{n}") not in shape.names))
        self._rest = self._rested = 0
        """How many batches go without a try, since the last one failed; and how many of them have."""

    @property
    def create(self) -> str:
        expect_room(self.shape)
        columns = ", ".join(column_of(one, self.shape.key) for one in self.shape.fields)
        return f"CREATE TABLE {self.full} ({columns}, PRIMARY KEY ({self.key}))"

    @property
    def create_stage(self) -> str:
        columns = ", ".join(column_of(one, self.shape.key) for one in self.shape.fields)
        return (
            f"CREATE TEMPORARY TABLE IF NOT EXISTS {self._stage} ({columns}, {self._gone} boolean)"
            " ON COMMIT DELETE ROWS"
        )

    # What changes it

    def change(self, connection: psycopg.Connection[Any], changes: Changes) -> bool:
        """Whether rows were put in."""
        deletes, upserts = changes.deletes, changes.upserts
        if not deletes and len(upserts) >= self._straight_from and self._put_straight(connection, upserts):
            return True
        fields = (*self.shape.fields, _GONE)
        with connection.cursor().copy(
            f"COPY {self._stage} ({self.columns}, {self._gone}) FROM STDIN"
        ) as copy:
            for some in _pieces(self._marked(deletes, upserts)):
                copy.write(copied(fields, some))
        if deletes:
            # Planned each time: how large the table is counts, and grows.
            connection.execute(self._delete, prepare=False)
        if upserts:
            connection.execute(self._upsert, prepare=True)
        return bool(upserts)

    def _put_straight(self, connection: psycopg.Connection[Any], rows: list[Row]) -> bool:
        """Whether they are in: not if a key was there already."""
        if self._rested < self._rest:
            self._rested += 1
            return False
        self._rested = 0
        try:
            with (
                connection.transaction(),
                connection.cursor().copy(f"COPY {self.full} ({self.columns}) FROM STDIN") as copy,
            ):
                for some in _pieces(iter(rows)):
                    copy.write(copied(self.shape.fields, some))
        except psycopg.errors.UniqueViolation:
            self._rest = min(_REST_MAX, 2 * self._rest + 1)
            return False
        self._rest = 0
        return True

    def _marked(self, deletes: list[Row], upserts: list[Row]) -> Iterator[Row]:
        empty: list[Any] = [None] * len(self.shape.fields)
        for key in deletes:
            for at, value in zip(self._places, key, strict=True):
                empty[at] = value
            yield (*empty, True)
        for row in upserts:
            yield (*row, False)

    @property
    def _delete(self) -> str:
        same = " AND ".join(f"t.{quoted(one)} = s.{quoted(one)}" for one in self.shape.key)
        return f"DELETE FROM {self.full} t USING {self._stage} s WHERE s.{self._gone} AND {same}"  # noqa: S608

    @property
    def _upsert(self) -> str:
        return (
            f"INSERT INTO {self.full} ({self.columns})"  # noqa: S608
            f" SELECT {self.columns} FROM {self._stage} WHERE NOT {self._gone} {self.on_conflict}"
        )

    @property
    def on_conflict(self) -> str:
        sets = [
            f"{quoted(one)} = excluded.{quoted(one)}" for one in self.shape.names if one not in self.shape.key
        ]
        return f"ON CONFLICT ({self.key}) DO " + (f"UPDATE SET {', '.join(sets)}" if sets else "NOTHING")

    # What is in it

    @property
    def select(self) -> str:
        return f"SELECT {', '.join(map(selected, self.shape.fields))} FROM {self.full}"  # noqa: S608

    def rows(self, connection: psycopg.Connection[Any], order: str = "") -> Iterator[Row]:
        """Within a transaction: read while they are asked for."""
        made = plain_row(self.shape)
        with connection.cursor("headrace_rows") as cursor:
            cursor.execute(f"{self.select} {order}")
            while some := cursor.fetchmany(_AT_ONCE):
                yield from map(made, some)

    def rows_by_key(self, connection: psycopg.Connection[Any]) -> Iterator[Row]:
        return self.rows(connection, f"ORDER BY {self.key}")


def _pieces(rows: Iterator[Row]) -> Iterator[list[Row]]:
    while some := list(itertools.islice(rows, _AT_ONCE)):
        yield some
