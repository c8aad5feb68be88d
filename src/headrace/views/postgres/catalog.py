"""``_headrace_views`` and ``_headrace_owners``: what a schema has of views, how far they are, and who may write them.

Both are read and written in the transactions that change the rows, so position, rows and owner agree at every moment.
A row whose table is gone, or has other columns than it was made with, stands for nothing: the view is built again.

``made`` is the table itself, whatever its name (regclass). A dump of the schema writes it as a name and finds it again
when it is restored; a table that was dropped and put back alone is another, with rows of another moment. ``filled``
says that there are rows, so that one that was emptied is found out.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import psycopg

from headrace.model.source import Sources
from headrace.views.errors import StoreForeign
from headrace.views.position import Position, Shape, Standing
from headrace.views.postgres.columns import column_type, quoted
from headrace.views.postgres.session import PostgresSession
from headrace.views.postgres.troubles import told_as
from headrace.views.store import Part

__all__ = ["EMPTIED", "Catalog"]

EMPTIED = "no row is there, and some were written: somebody has emptied it"

_POSITION = (
    "topic",
    "topic_id",
    "generation",
    "batch",
    "offsets",
    "progress_id",
    "progress_offset",
    "removed_below",
    "complete_ms",
    "stored_ms",
    "dead",
    "sources",
)
_MAPS: dict[str, Any] = {"offsets": dict[int, int], "removed_below": dict[int, int], "sources": Sources}
_VIEWS = {
    "view": 'text COLLATE "C"',
    "part": 'text COLLATE "C"',
    "name": "text",
    "topic": "text",
    "topic_id": "text",
    "generation": "bigint",
    "batch": "bigint",
    "offsets": "json",
    "progress_id": "text",
    "progress_offset": "bigint",
    "removed_below": "json",
    "complete_ms": "bigint",
    "stored_ms": "bigint",
    "dead": "bigint",
    "sources": "json",
    "shape": "json",
    "wish": "bigint",
    "reason": "text",
    "made": "regclass",
    "filled": "boolean",
}
_OWNERS = {
    "view": 'text COLLATE "C"',
    "epoch": "bigint",
    "owner": "text",
    "taken_ms": "bigint",
    "wish": "bigint",
}
# Whether the table of that name is the one that was made; %s is the schema.
_SAME = "coalesce(made::oid = to_regclass(format('%%I.%%I', %s::text, name))::oid, false)"
_READ = ", ".join(f"{one}::text" if one in _MAPS else one for one in _POSITION)
_COLUMNS = """
SELECT a.attname, format_type(a.atttypid, a.atttypmod), coalesce(array_position(i.indkey::int2[], a.attnum), -1)
FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid JOIN pg_namespace n ON n.oid = c.relnamespace
LEFT JOIN pg_index i ON i.indrelid = c.oid AND i.indisprimary
WHERE n.nspname = %s AND c.relname = %s AND c.relkind = 'r' AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum
"""


class Catalog:
    def __init__(self, session: PostgresSession) -> None:
        self._session = session
        self._schema = session.schema
        self.views = f"{quoted(session.schema)}._headrace_views"
        self.owners = f"{quoted(session.schema)}._headrace_owners"

    def is_there(self) -> bool:
        """Raises if it is somebody else's."""
        with told_as(self._session.where):
            connection = self._session.connection
            found = {
                name: [one for one, _ in self.columns(connection, name)[0]]
                for name in ("_headrace_views", "_headrace_owners")
            }
        for name, wanted in (("_headrace_views", _VIEWS), ("_headrace_owners", _OWNERS)):
            if found[name] and found[name] != list(wanted):
                raise StoreForeign(
                    f"{self._session.where} has a table {name} that this release has not made",
                    detail=f"its columns are {', '.join(found[name])}",
                    hint="use the release that wrote it, or name another schema: the views are built again",
                )
        return all(found.values())

    def make(self) -> None:
        """What is not there yet. Those who come at the same time take turns."""
        schema = quoted(self._schema)
        with self._session.transaction() as connection:
            connection.execute("SELECT pg_advisory_xact_lock(hashtext(%s))", [f"headrace {self._schema}"])
            found = connection.execute("SELECT 1 FROM pg_namespace WHERE nspname = %s", [self._schema])
            if found.fetchone() is None:
                connection.execute(f"CREATE SCHEMA {schema}")
            for table, columns, key in (
                (self.owners, _OWNERS, "view"),
                (self.views, _VIEWS, "view, part"),
            ):
                told = ", ".join(f"{name} {type_name} NOT NULL" for name, type_name in columns.items())
                connection.execute(f"CREATE TABLE IF NOT EXISTS {table} ({told}, PRIMARY KEY ({key}))")

    # Positions

    def standing(self, connection: psycopg.Connection[Any], view: str, part: Part) -> Standing | None:
        found = self.found(connection, view, part)
        return None if found is None else found[1]

    def found(
        self, connection: psycopg.Connection[Any], view: str, part: Part
    ) -> tuple[str, Standing] | None:
        """The name of its table too, for who reads rows next: each question is a way there and back."""
        found = connection.execute(
            f"SELECT name, shape::text, wish, reason, {_SAME}, filled, {_READ} FROM {self.views}"  # noqa: S608
            " WHERE view = %s AND part = %s",
            [self._schema, view, part],
        ).fetchone()
        if found is None:
            return None
        name, told, wish, reason, is_same, filled, *position = found
        shape = Shape.told(told)
        if not is_same or not self._is_as_made(connection, name, shape):
            return None
        fault = EMPTIED if filled and self.is_empty(connection, name, shape) else ""
        return name, Standing(shape, _position(position), wish, reason, fault)

    def is_ours(self, connection: psycopg.Connection[Any], view: str) -> bool:
        """Whether what has the name of the view is the table that served, or a copy of it that was put back."""
        found = connection.execute(
            f"SELECT name, shape::text, {_SAME} FROM {self.views} WHERE view = %s AND part = %s",  # noqa: S608
            [self._schema, view, Part.SERVING],
        ).fetchone()
        if found is None:
            return False
        name, told, is_same = found
        return bool(is_same) or self._is_as_made(connection, name, Shape.told(told))

    def is_empty(self, connection: psycopg.Connection[Any], name: str, shape: Shape) -> bool:
        found = connection.execute(f"SELECT {self._first(name, shape)} IS NULL", prepare=True)
        return found.fetchone() == (True,)

    def is_emptied(
        self, connection: psycopg.Connection[Any], view: str, part: Part, name: str, shape: Shape
    ) -> bool:
        """Whether rows were written, and none is there."""
        first = self._first(name, shape).replace("%", "%%")
        found = connection.execute(
            f"SELECT filled AND {first} IS NULL FROM {self.views}"  # noqa: S608
            " WHERE view = %s AND part = %s",
            [view, part],
            prepare=True,
        )
        return found.fetchone() == (True,)

    def _first(self, name: str, shape: Shape) -> str:
        """True, or null if there is no row. By the index, where what was deleted is passed over in no time; from its
        end, since what goes is mostly what is old, and stays in front for as long as a transaction may still see it.
        """
        key = ", ".join(f"{quoted(one)} DESC" for one in shape.key)
        return f"(SELECT true FROM {self._full(name)} ORDER BY {key} LIMIT 1)"  # noqa: S608

    def name(self, connection: psycopg.Connection[Any], view: str, part: Part) -> str | None:
        """Of the table, whether it is there or not; None if nothing is known."""
        found = connection.execute(
            f"SELECT name FROM {self.views} WHERE view = %s AND part = %s",  # noqa: S608
            [view, part],
        ).fetchone()
        return None if found is None else str(found[0])

    def position(self, connection: psycopg.Connection[Any], view: str, part: Part) -> Position | None:
        found = connection.execute(
            f"SELECT {_READ} FROM {self.views} WHERE view = %s AND part = %s",  # noqa: S608
            [view, part],
            prepare=True,
        ).fetchone()
        return None if found is None else _position(found)

    def begin(
        self, connection: psycopg.Connection[Any], view: str, part: Part, name: str, standing: Standing
    ) -> None:
        head = ("view", "part", "name", "made", "filled", "shape", "wish", "reason")
        marks = ", ".join(["%s"] * (len(head) + len(_POSITION)))
        connection.execute(
            f"INSERT INTO {self.views} ({', '.join((*head, *_POSITION))}) VALUES ({marks})",  # noqa: S608
            [
                *(view, part, name, self._full(name), False),
                *(standing.shape.tell(), standing.wish, standing.reason),
                *_told(standing.position),
            ],
        )

    def move(
        self,
        connection: psycopg.Connection[Any],
        view: str,
        part: Part,
        after: Position,
        filled: bool | None = None,
    ) -> None:
        """``filled`` is None where the rows have not changed."""
        sets = ", ".join([*(f"{one} = %s" for one in _POSITION), "filled = coalesce(%s::boolean, filled)"])
        connection.execute(
            f"UPDATE {self.views} SET {sets} WHERE view = %s AND part = %s",  # noqa: S608
            [*_told(after), filled, view, part],
            prepare=True,
        )

    def serve(self, connection: psycopg.Connection[Any], view: str, name: str) -> None:
        """What was being built is what serves, in this table."""
        connection.execute(
            f"DELETE FROM {self.views} WHERE view = %s AND part = %s",  # noqa: S608
            [view, Part.SERVING],
        )
        connection.execute(
            f"UPDATE {self.views} SET part = %s, name = %s, made = %s WHERE view = %s AND part = %s",  # noqa: S608
            [Part.SERVING, name, self._full(name), view, Part.BUILDING],
        )

    def forget(self, connection: psycopg.Connection[Any], view: str, part: Part) -> None:
        connection.execute(
            f"DELETE FROM {self.views} WHERE view = %s AND part = %s",  # noqa: S608
            [view, part],
        )

    # Tables

    def _full(self, name: str) -> str:
        return f"{quoted(self._schema)}.{quoted(name)}"

    def columns(
        self, connection: psycopg.Connection[Any], table: str
    ) -> tuple[list[tuple[str, str]], list[str]]:
        """Names and types, in their order, and the names of the key; nothing if there is no such table."""
        found = connection.execute(_COLUMNS, [self._schema, table]).fetchall()
        key = sorted((at, name) for name, _, at in found if at >= 0)
        return [(name, kind) for name, kind, _ in found], [name for _, name in key]

    def _is_as_made(self, connection: psycopg.Connection[Any], name: str, shape: Shape) -> bool:
        columns, key = self.columns(connection, name)
        wanted = {(one.name, column_type(one)) for one in shape.fields}
        return wanted <= set(columns) and key == list(shape.key)

    def kind_of(self, connection: psycopg.Connection[Any], name: str) -> str | None:
        """What has this name in the schema, for a person; None if nothing has."""
        found = connection.execute(
            "SELECT c.relkind::text FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace"
            " WHERE n.nspname = %s AND c.relname = %s",
            [self._schema, name],
        ).fetchone()
        kinds = {"r": "table", "v": "view", "m": "materialized view", "i": "index", "S": "sequence"}
        return None if found is None else kinds.get(found[0], "relation")


def _told(position: Position) -> list[object]:
    return [
        msgspec.json.encode(getattr(position, one)).decode() if one in _MAPS else getattr(position, one)
        for one in _POSITION
    ]


def _position(found: Sequence[Any]) -> Position:
    told = dict(zip(_POSITION, found, strict=True))
    for name, kind in _MAPS.items():
        told[name] = msgspec.json.decode(told[name], type=kind)
    return Position(**told)
