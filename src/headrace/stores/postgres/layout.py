"""The tables ``_headrace_views`` and ``_headrace_owners`` of a PostgreSQL schema.

``_headrace_views`` has one row for each part of a view, with the part's position, schema and table. The table of the
part ``serving`` has the view's name. The part ``building`` is in ``_headrace_new_<view>``, and the part ``kept``, a
former serving part, in ``_headrace_kept_<view>``. Long names are shortened.
``_headrace_owners`` has a row per view, with the follower that may write the view. A transaction that changes rows
reads and writes both tables, so position, rows and owner are always consistent. A row in ``_headrace_views`` names the
table of a part. If that table is missing, or does not have the expected columns, the row counts as missing, and the
follower rebuilds the view.

The regclass column identifies the table itself, independently of its name. A dump of the schema writes the table's
name, and a restore resolves the name. If only the view's table was dropped and restored, the column does not match, and
the view is rebuilt, because the restored rows might not match the position. ``filled`` records whether the table has
rows, to detect a table that another program emptied.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import psycopg

from headrace.model.progress import Sources
from headrace.stores.errors import QueryTimedOut, StoreForeign, StoreReplaced
from headrace.stores.position import Position, ViewSchema, ViewState
from headrace.stores.postgres.errors import translate_errors
from headrace.stores.postgres.session import PostgresSession
from headrace.stores.postgres.table import clip_name, column_type, quoted
from headrace.stores.writer import Part

__all__ = ["EMPTY_TABLE_FAULT", "MOVING", "Catalog", "table_name"]

EMPTY_TABLE_FAULT = "the table is empty, but it should have rows; another program emptied it"

MOVING = "moving"
"""A part that exists only within the transaction that exchanges the serving part and the kept part."""
_PREFIXES = {
    Part.SERVING: "",
    Part.BUILDING: "_headrace_new_",
    Part.KEPT: "_headrace_kept_",
    MOVING: "_headrace_moving_",
}
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
# True if the table with that name is the table that the follower created; %s is the schema.
_SAME_TABLE = "coalesce(made::oid = to_regclass(format('%%I.%%I', %s::text, name))::oid, false)"
_SELECT_POSITION = ", ".join(f"{name}::text" if name in _MAPS else name for name in _POSITION)
_COLUMNS = """
SELECT a.attname, format_type(a.atttypid, a.atttypmod), coalesce(array_position(i.indkey::int2[], a.attnum), -1)
FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid JOIN pg_namespace n ON n.oid = c.relnamespace
LEFT JOIN pg_index i ON i.indrelid = c.oid AND i.indisprimary
WHERE n.nspname = %s AND c.relname = %s AND c.relkind = 'r' AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum
"""


def table_name(view: str, part: str) -> str:
    return clip_name(f"{_PREFIXES[part]}{view}")


class Catalog:
    def __init__(self, session: PostgresSession) -> None:
        self._session = session
        self._schema_name = session.schema_name
        self._views = f"{quoted(session.schema_name)}._headrace_views"
        self.owners = f"{quoted(session.schema_name)}._headrace_owners"

    def exists(self) -> bool:
        """Return whether the tables exist. Raise if another program or another release created them."""
        with translate_errors(self._session.where):
            connection = self._session.connection
            columns_by_table = {
                table: [name for name, _ in self.columns(connection, table)[0]]
                for table in ("_headrace_views", "_headrace_owners")
            }
        for table, expected in (("_headrace_views", _VIEWS), ("_headrace_owners", _OWNERS)):
            if columns_by_table[table] and columns_by_table[table] != list(expected):
                raise StoreForeign(
                    f"{self._session.where} has a table {table} that this release did not create",
                    detail=f"its columns are {', '.join(columns_by_table[table])}",
                    hint="use the release that created it, or another schema, where the followers rebuild the views",
                )
        return all(columns_by_table.values())

    def create(self) -> None:
        """Create the schema and the tables unless they exist. A lock serializes concurrent followers."""
        schema = quoted(self._schema_name)
        with self._session.transaction() as connection:
            connection.execute(
                "SELECT pg_advisory_xact_lock(hashtext(%s))", [f"headrace {self._schema_name}"]
            )
            result = connection.execute("SELECT 1 FROM pg_namespace WHERE nspname = %s", [self._schema_name])
            if result.fetchone() is None:
                connection.execute(f"CREATE SCHEMA {schema}")
            for table, columns, key in (
                (self.owners, _OWNERS, "view"),
                (self._views, _VIEWS, "view, part"),
            ):
                definitions = ", ".join(f"{name} {type_name} NOT NULL" for name, type_name in columns.items())
                connection.execute(f"CREATE TABLE IF NOT EXISTS {table} ({definitions}, PRIMARY KEY ({key}))")

    # States and positions

    def lock_serving(self, connection: psycopg.Connection[Any], view: str, timeout_s: float) -> None:
        """Lock the serving table, so that it is not renamed before the end of the transaction. Set the timeout of
        statements.

        Call this before the transaction takes its snapshot, so before the first SELECT. Otherwise ``state_and_table``
        can fail because the view was switched back after the snapshot. If the table does not exist, or the role may not
        read it, the next read reports this.
        """
        table = self._full_name(table_name(view, Part.SERVING))
        timeout_ms = max(1, int(timeout_s * 1_000))
        try:
            # One round trip. A statement with several commands cannot be prepared.
            connection.execute(
                f"SET LOCAL statement_timeout = {timeout_ms}; SAVEPOINT headrace_lock;"
                f" LOCK TABLE {table} IN ACCESS SHARE MODE",
                prepare=False,
            )
        except psycopg.errors.QueryCanceled as error:
            raise QueryTimedOut(timeout_s) from error
        except (psycopg.errors.UndefinedTable, psycopg.errors.InsufficientPrivilege):
            connection.execute("ROLLBACK TO SAVEPOINT headrace_lock")

    def state(self, connection: psycopg.Connection[Any], view: str, part: Part) -> ViewState | None:
        result = self.state_and_table(connection, view, part)
        return None if result is None else result[1]

    def state_and_table(
        self, connection: psycopg.Connection[Any], view: str, part: Part
    ) -> tuple[str, ViewState] | None:
        """Return the name of the table and the state. Reading both at once saves readers a round trip."""
        result = connection.execute(
            f"SELECT name, shape::text, wish, reason, {_SAME_TABLE}, filled, {_SELECT_POSITION} FROM {self._views}"  # noqa: S608
            " WHERE view = %s AND part = %s",
            [self._schema_name, view, part],
        ).fetchone()
        if result is None:
            return None
        name, schema_text, requests, reason, is_same, filled, *position = result
        schema = ViewSchema.parse(schema_text)
        if not is_same:
            self._check_not_switched(connection, view)
            return None
        if not self._has_columns(connection, name, schema):
            return None
        fault = EMPTY_TABLE_FAULT if filled and self.is_empty(connection, name, schema) else ""
        return name, ViewState(schema, _position(position), requests, reason, fault)

    def _check_not_switched(self, connection: psycopg.Connection[Any], view: str) -> None:
        """Raise if the view was switched back after the transaction took its snapshot. A snapshot has the old rows of
        the catalog, but the new names of tables.
        """
        (current,) = connection.execute(
            "SELECT to_regclass(%s)::oid", [self._full_name(table_name(view, Part.SERVING))]
        ).fetchone() or (None,)
        result = connection.execute(
            f"SELECT FROM {self._views} WHERE view = %s AND part = %s AND made::oid = %s",
            [view, Part.KEPT, current],
        )
        if result.fetchone() is not None:
            raise StoreReplaced(
                f"view {view!r} in {self._session.where} was switched back while it was read",
                hint="run the query again",
            )

    def views(self, connection: psycopg.Connection[Any]) -> Iterator[tuple[str, Part, ViewState]]:
        """Return all parts of all views, without checking their tables."""
        for view, part, schema, requests, reason, *position in connection.execute(
            f"SELECT view, part, shape::text, wish, reason, {_SELECT_POSITION} FROM {self._views}"  # noqa: S608
            " ORDER BY view, part DESC"
        ).fetchall():
            yield view, Part(part), ViewState(ViewSchema.parse(schema), _position(position), requests, reason)

    def serving_table(self, connection: psycopg.Connection[Any], view: str) -> tuple[str, ViewSchema] | None:
        result = connection.execute(
            f"SELECT name, shape::text FROM {self._views} WHERE view = %s AND part = %s",  # noqa: S608
            [view, Part.SERVING],
        ).fetchone()
        return None if result is None else (result[0], ViewSchema.parse(result[1]))

    def is_ours(self, connection: psycopg.Connection[Any], view: str) -> bool:
        """Return whether the table with the view's name is the serving part or a restored copy of the serving part."""
        result = connection.execute(
            f"SELECT name, shape::text, {_SAME_TABLE} FROM {self._views} WHERE view = %s AND part = %s",  # noqa: S608
            [self._schema_name, view, Part.SERVING],
        ).fetchone()
        if result is None:
            return False
        name, schema, is_same = result
        return bool(is_same) or self._has_columns(connection, name, ViewSchema.parse(schema))

    def is_empty(self, connection: psycopg.Connection[Any], name: str, schema: ViewSchema) -> bool:
        result = connection.execute(f"SELECT {self._any_row(name, schema)} IS NULL", prepare=True)
        return result.fetchone() == (True,)

    def lost_all_rows(
        self, connection: psycopg.Connection[Any], view: str, part: Part, name: str, schema: ViewSchema
    ) -> bool:
        """Return whether the table should have rows but is empty."""
        any_row = self._any_row(name, schema).replace("%", "%%")
        result = connection.execute(
            f"SELECT filled AND {any_row} IS NULL FROM {self._views}"  # noqa: S608
            " WHERE view = %s AND part = %s",
            [view, part],
            prepare=True,
        )
        return result.fetchone() == (True,)

    def _any_row(self, name: str, schema: ViewSchema) -> str:
        """Return SQL that is true if the table has a row, and otherwise null.

        It reads the index of the key from its end, because an index scan skips deleted rows fast. Most deleted rows are
        old and at the start of the index, where they remain as long as an open transaction can see them.
        """
        key = ", ".join(f"{quoted(column)} DESC" for column in schema.key)
        return f"(SELECT true FROM {self._full_name(name)} ORDER BY {key} LIMIT 1)"  # noqa: S608

    def table_name(self, connection: psycopg.Connection[Any], view: str, part: Part) -> str | None:
        """Return the name of the part's table, even if the table is missing. None if the part does not exist."""
        result = connection.execute(
            f"SELECT name FROM {self._views} WHERE view = %s AND part = %s",  # noqa: S608
            [view, part],
        ).fetchone()
        return None if result is None else str(result[0])

    def position(self, connection: psycopg.Connection[Any], view: str, part: Part) -> Position | None:
        result = connection.execute(
            f"SELECT {_SELECT_POSITION} FROM {self._views} WHERE view = %s AND part = %s",  # noqa: S608
            [view, part],
            prepare=True,
        ).fetchone()
        return None if result is None else _position(result)

    def insert(
        self, connection: psycopg.Connection[Any], view: str, part: Part, name: str, state: ViewState
    ) -> None:
        state_columns = ("view", "part", "name", "made", "filled", "shape", "wish", "reason")
        placeholders = ", ".join(["%s"] * (len(state_columns) + len(_POSITION)))
        connection.execute(
            f"INSERT INTO {self._views} ({', '.join((*state_columns, *_POSITION))}) VALUES ({placeholders})",  # noqa: S608
            [
                *(view, part, name, self._full_name(name), False),
                *(state.schema.to_json(), state.rebuild_requests, state.reason),
                *_position_values(state.position),
            ],
        )

    def set_position(
        self,
        connection: psycopg.Connection[Any],
        view: str,
        part: Part,
        after: Position,
        filled: bool | None = None,
    ) -> None:
        """``filled`` is None if no rows changed."""
        assignments = ", ".join(
            [*(f"{name} = %s" for name in _POSITION), "filled = coalesce(%s::boolean, filled)"]
        )
        connection.execute(
            f"UPDATE {self._views} SET {assignments} WHERE view = %s AND part = %s",  # noqa: S608
            [*_position_values(after), filled, view, part],
            prepare=True,
        )

    def move(
        self, connection: psycopg.Connection[Any], view: str, source: str, target: str, name: str
    ) -> None:
        """Make the part ``source`` the part ``target``, with the table ``name``. Delete the old part ``target``."""
        self.delete(connection, view, target)
        connection.execute(
            f"UPDATE {self._views} SET part = %s, name = %s, made = %s WHERE view = %s AND part = %s",  # noqa: S608
            [target, name, self._full_name(name), view, source],
        )

    def fulfil_requests(self, connection: psycopg.Connection[Any], view: str) -> None:
        """Let the kept part fulfil the rebuild requests that the serving part fulfils."""
        connection.execute(
            f"UPDATE {self._views} k SET wish = greatest(k.wish, s.wish) FROM {self._views} s"  # noqa: S608
            " WHERE k.view = %s AND k.part = %s AND s.view = k.view AND s.part = %s",
            [view, Part.KEPT, Part.SERVING],
        )

    def copy(
        self, connection: psycopg.Connection[Any], view: str, source: Part, target: Part, name: str
    ) -> None:
        """Create the part ``target`` with the state of ``source`` and the table ``name``."""
        changed = {"part": target, "name": name, "made": self._full_name(name)}
        selected = ", ".join(f"%s::{_VIEWS[column]}" if column in changed else column for column in _VIEWS)
        connection.execute(
            f"INSERT INTO {self._views} ({', '.join(_VIEWS)})"  # noqa: S608
            f" SELECT {selected} FROM {self._views} WHERE view = %s AND part = %s",
            [*(changed[column] for column in _VIEWS if column in changed), view, source],
        )

    def delete(self, connection: psycopg.Connection[Any], view: str, part: str) -> None:
        connection.execute(
            f"DELETE FROM {self._views} WHERE view = %s AND part = %s",  # noqa: S608
            [view, part],
        )

    # Tables

    def _full_name(self, name: str) -> str:
        return f"{quoted(self._schema_name)}.{quoted(name)}"

    def columns(
        self, connection: psycopg.Connection[Any], table: str
    ) -> tuple[list[tuple[str, str]], list[str]]:
        """Return the names and types of the columns, and the names of the key columns. Both lists are empty if the
        table does not exist.
        """
        result = connection.execute(_COLUMNS, [self._schema_name, table]).fetchall()
        key = sorted((number, name) for name, _, number in result if number >= 0)
        return [(name, kind) for name, kind, _ in result], [name for _, name in key]

    def _has_columns(self, connection: psycopg.Connection[Any], name: str, schema: ViewSchema) -> bool:
        columns, key = self.columns(connection, name)
        expected = {(field.name, column_type(field)) for field in schema.fields}
        return expected <= set(columns) and key == list(schema.key)

    def relation_kind(self, connection: psycopg.Connection[Any], name: str) -> str | None:
        """Return the kind of the relation with this name, for error messages. None if no relation has this name."""
        result = connection.execute(
            "SELECT c.relkind::text FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace"
            " WHERE n.nspname = %s AND c.relname = %s",
            [self._schema_name, name],
        ).fetchone()
        kinds = {"r": "table", "v": "view", "m": "materialized view", "i": "index", "S": "sequence"}
        return None if result is None else kinds.get(result[0], "relation")


def _position_values(position: Position) -> list[object]:
    return [
        msgspec.json.encode(getattr(position, name)).decode() if name in _MAPS else getattr(position, name)
        for name in _POSITION
    ]


def _position(result: Sequence[Any]) -> Position:
    values = dict(zip(_POSITION, result, strict=True))
    for name, kind in _MAPS.items():
        values[name] = msgspec.json.decode(values[name], type=kind)
    return Position(**values)
