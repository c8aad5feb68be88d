"""Writes one view in a SQLite file.

One transaction reads and writes the owner, the position and the rows, so they are consistent for every reader.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path

from headrace.stores.errors import NameRefused, PositionMoved, SchemaRefused, StoreForeign
from headrace.stores.position import Position, ViewSchema, ViewState
from headrace.stores.rows import Row
from headrace.stores.sqlite.errors import translate_errors
from headrace.stores.sqlite.layout import (
    POSITION_COLUMNS,
    SqliteFile,
    SqliteTable,
    position_from_row,
    position_values,
    quoted,
    read_state,
)
from headrace.stores.writer import (
    Changes,
    Fence,
    Owner,
    Part,
    StoreWriter,
    check_fence,
    check_position,
    check_view_name,
    is_older,
    next_owner,
)

__all__ = ["SqliteWriter"]

_HEAD_COLUMNS = "view, part, name, shape, wish, reason"
_INSERT_STATE = (
    f"INSERT INTO _headrace_views ({_HEAD_COLUMNS}, {POSITION_COLUMNS}) VALUES ({', '.join('?' * 18)})"  # noqa: S608
)
_UPDATE_POSITION = (
    f"UPDATE _headrace_views SET ({POSITION_COLUMNS}) = ({', '.join('?' * 12)}) WHERE view = ? AND part = ?"  # noqa: S608
)
_BUILDING_PREFIX = "_headrace_new_"


class SqliteWriter(StoreWriter):
    def __init__(self, path: Path, view: str) -> None:
        check_view_name(view)
        self.view = view
        self.path = path
        self._file = SqliteFile(path)
        self._tables: dict[Part, SqliteTable] = {}

    def close(self) -> None:
        self._file.close()

    # Ownership

    def claim(self, name: str, now_ms: int, before: Owner | None = None) -> Owner:
        with self._file.transaction() as connection:
            row = connection.execute(
                "SELECT view FROM _headrace_owners WHERE view = ?", (self.view,)
            ).fetchone()
            if row and row[0] != self.view:
                raise NameRefused(
                    f"{self.path} already has view {row[0]!r}, so it cannot also have view {self.view!r}",
                    hint="SQLite ignores case in table names: rename one of the views, or use another file for it",
                )
            owner = next_owner(self.view, name, self._owner(connection), before)
            connection.execute(
                "INSERT INTO _headrace_owners VALUES (?, ?, ?, ?, 0) ON CONFLICT (view) DO UPDATE"
                " SET epoch = excluded.epoch, owner = excluded.owner, taken_ms = excluded.taken_ms",
                (self.view, owner.epoch, owner.name, now_ms),
            )
        return owner

    def _owner(self, connection: sqlite3.Connection) -> Owner | None:
        row = connection.execute(
            "SELECT epoch, owner FROM _headrace_owners WHERE view = ?", (self.view,)
        ).fetchone()
        return Owner(*row) if row else None

    # State and rows

    def state(self, part: Part) -> ViewState | None:
        with self._file.reading() as connection:
            return read_state(connection, self.view, part)

    def _table(self, connection: sqlite3.Connection, part: Part) -> SqliteTable:
        """Return the part's table. The result is cached, because the schema of a part never changes."""
        if part not in self._tables:
            state = read_state(connection, self.view, part)
            if state is None:
                raise PositionMoved(f"view {self.view!r} has no {part} table in {self.path}")
            self._tables[part] = SqliteTable(self._table_name(part), state.schema)
        return self._tables[part]

    def _table_name(self, part: Part) -> str:
        return self.view if part is Part.SERVING else f"{_BUILDING_PREFIX}{self.view}"

    def rows(self, part: Part = Part.SERVING) -> Iterator[Row]:
        with self._file.reading() as connection:
            table = self._table(connection, part)
            yield from table.rows(connection)

    # Writes

    def begin(self, schema: ViewSchema, position: Position, reason: str, fence: Fence) -> ViewState:
        table = SqliteTable(self._table_name(Part.BUILDING), schema)
        with self._file.transaction() as connection:
            owner = self._owner(connection)
            check_fence(self.view, fence, owner, None)
            serving = read_state(connection, self.view, Part.SERVING)
            if serving is None:
                self._check_name_free(connection)
            elif is_older(position, serving.position):
                check_fence(self.view, fence, owner, serving.position.generation)
            self._drop(connection, Part.BUILDING)
            try:
                connection.execute(table.create)
            except sqlite3.OperationalError as error:
                raise SchemaRefused(
                    f"view {self.view!r}: SQLite rejects its columns: {error}",
                    hint="use at most 2000 columns, and names that differ in more than case",
                ) from error
            (requests,) = connection.execute(
                "SELECT wish FROM _headrace_owners WHERE view = ?", (self.view,)
            ).fetchone()
            state_values = (self.view, Part.BUILDING, table.name, schema.to_json(), requests, reason)
            connection.execute(_INSERT_STATE, (*state_values, *position_values(position)))
        self._tables[Part.BUILDING] = table
        return ViewState(schema, position, requests, reason)

    def _check_name_free(self, connection: sqlite3.Connection) -> None:
        row = connection.execute(
            "SELECT type FROM sqlite_master WHERE name = ? COLLATE NOCASE", (self.view,)
        ).fetchone()
        if row:
            raise StoreForeign(
                f"{self.path} has a {row[0]} {self.view!r} that no follower created",
                hint="rename this object or the view; the object was not changed",
            )

    def apply(self, part: Part, changes: Changes, before: Position, after: Position, fence: Fence) -> None:
        with self._file.transaction() as connection:
            self._check(connection, part, before, fence)
            if after.generation != fence.generation:
                check_fence(self.view, fence, fence.owner, after.generation)
            table = self._table(connection, part)
            if deletes := changes.deletes:
                connection.executemany(table.delete, deletes)
            if upserts := changes.upserts:
                connection.executemany(table.upsert, upserts)
            connection.execute(_UPDATE_POSITION, (*position_values(after), self.view, part))

    def _check(
        self, connection: sqlite3.Connection, part: Part, before: Position | None, fence: Fence
    ) -> None:
        """Raise unless the fence is current and the part is at the position ``before``."""
        row = connection.execute(
            f"SELECT {POSITION_COLUMNS} FROM _headrace_views WHERE view = ? AND part = ?",  # noqa: S608
            (self.view, part),
        ).fetchone()
        position = position_from_row(list(row)) if row else None
        check_fence(self.view, fence, self._owner(connection), position.generation if position else None)
        check_position(self.view, str(self.path), before, position)

    def swap(self, fence: Fence) -> None:
        with self._file.transaction() as connection:
            self._check(connection, Part.BUILDING, None, fence)
            built = self._table(connection, Part.BUILDING)
            if read_state(connection, self.view, Part.SERVING) is None:
                self._check_name_free(connection)
            indexes = _indexes_of_users(connection, self.view)
            self._drop(connection, Part.SERVING)
            connection.execute(f"ALTER TABLE {quoted(built.name)} RENAME TO {quoted(self.view)}")
            connection.execute(
                "UPDATE _headrace_views SET part = ?, name = ? WHERE view = ? AND part = ?",
                (Part.SERVING, self.view, self.view, Part.BUILDING),
            )
            for statement in indexes:
                _create_index(connection, statement)
        self._tables.clear()

    def drop_building(self, fence: Fence) -> None:
        with self._file.transaction() as connection:
            check_fence(self.view, fence, self._owner(connection), None)
            self._drop(connection, Part.BUILDING)

    def _drop(self, connection: sqlite3.Connection, part: Part) -> None:
        """Drop the part. Drop only a table that ``_headrace_views`` names."""
        dropped = connection.execute(
            "DELETE FROM _headrace_views WHERE view = ? AND part = ? RETURNING name", (self.view, part)
        ).fetchall()
        for (name,) in dropped:
            connection.execute(f"DROP TABLE IF EXISTS {quoted(name)}")
        self._tables.pop(part, None)

    # Rebuild requests

    def request_rebuild(self) -> None:
        with self._file.transaction() as connection:
            changed = connection.execute(
                "UPDATE _headrace_owners SET wish = wish + 1 WHERE view = ?", (self.view,)
            )
            if not changed.rowcount:
                connection.execute("INSERT INTO _headrace_owners VALUES (?, 0, '', 0, 0)", (self.view,))

    def rebuild_requests(self) -> int:
        with translate_errors(self.path):
            row = self._file.connection.execute(
                "SELECT wish FROM _headrace_owners WHERE view = ?", (self.view,)
            ).fetchone()
        return int(row[0]) if row else 0


def _indexes_of_users(connection: sqlite3.Connection, table: str) -> list[str]:
    cursor = connection.execute(
        "SELECT sql FROM sqlite_master WHERE type = 'index' AND tbl_name = ? COLLATE NOCASE AND sql IS NOT NULL",
        (table,),
    )
    return [sql for (sql,) in cursor]


def _create_index(connection: sqlite3.Connection, statement: str) -> None:
    """Create the index, unless the new table does not have one of its columns."""
    try:
        connection.execute(statement)
    except sqlite3.OperationalError as error:
        if "no such column" not in str(error):
            raise
