"""Writes one view in a SQLite file.

One transaction reads and writes the owner, the position and the rows, so they are consistent for every reader. A swap
renames tables in one transaction, and never copies rows.

Indexes that users created stay on their table when it becomes the kept part. The new serving table gets the same
indexes. Names of indexes are unique in a file, so the copy of index ``by_name`` is called ``_headrace_2_by_name``. A
table that becomes the kept part loses its triggers, as a table that a swap deletes, so that no trigger runs twice.
"""

from __future__ import annotations

import itertools
import re
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
    check_droppable,
    check_fence,
    check_kept,
    check_position,
    check_view_name,
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
_UPDATE_PART = "UPDATE _headrace_views SET part = ?, name = ? WHERE view = ? AND part = ?"
_FULFIL_REQUESTS = (
    "UPDATE _headrace_views SET wish = max(wish, coalesce((SELECT wish FROM _headrace_views"
    " WHERE view = ? AND part = ?), 0)) WHERE view = ? AND part = ?"
)
_PREFIXES = {Part.SERVING: "", Part.BUILDING: "_headrace_new_", Part.KEPT: "_headrace_kept_"}
_MOVING = "moving"
"""The part of a row while a transaction exchanges two parts."""
_INDEX_PREFIX = re.compile(r"^_headrace_\d+_")
_CREATE_INDEX = re.compile(
    r"""(CREATE (?:UNIQUE )?INDEX )("(?:[^"]|"")*"|'(?:[^']|'')*'|`(?:[^`]|``)*`|\[[^]]*\]|[^\s"'`\[(]+)"""
)


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
        self._tables.clear()
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
        return f"{_PREFIXES[part]}{self.view}"

    def rows(self, part: Part = Part.SERVING) -> Iterator[Row]:
        with self._file.reading() as connection:
            table = self._table(connection, part)
            yield from table.rows(connection)

    # Writes

    def begin(self, schema: ViewSchema, position: Position, reason: str, fence: Fence) -> ViewState:
        table = SqliteTable(self._table_name(Part.BUILDING), schema)
        with self._file.transaction() as connection:
            check_fence(self.view, fence, self._owner(connection), None)
            if read_state(connection, self.view, Part.SERVING) is None:
                self._check_name_free(connection)
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
        position = self._position(connection, part)
        check_fence(self.view, fence, self._owner(connection), position.generation if position else None)
        check_position(self.view, str(self.path), before, position)

    def _position(self, connection: sqlite3.Connection, part: Part) -> Position | None:
        row = connection.execute(
            f"SELECT {POSITION_COLUMNS} FROM _headrace_views WHERE view = ? AND part = ?",  # noqa: S608
            (self.view, part),
        ).fetchone()
        return position_from_row(list(row)) if row else None

    def swap(self, fence: Fence, keep: bool = False) -> None:
        with self._file.transaction() as connection:
            self._check(connection, Part.BUILDING, None, fence)
            if read_state(connection, self.view, Part.SERVING) is None:
                self._check_name_free(connection)
            indexes = _indexes_of_users(connection, self.view)
            if keep and _table_exists(connection, self.view):
                self._drop(connection, Part.KEPT)
                self._keep_serving(connection)
            else:
                self._drop(connection, Part.SERVING)
            self._rename(connection, Part.BUILDING, Part.SERVING)
            for name, statement in indexes:
                _create_index(connection, name, statement)

    def swap_back(self, fence: Fence) -> None:
        with self._file.transaction() as connection:
            kept = self._position(connection, Part.KEPT)
            check_kept(self.view, str(self.path), fence, self._owner(connection), kept)
            connection.execute(_FULFIL_REQUESTS, (self.view, Part.SERVING, self.view, Part.KEPT))
            if _table_exists(connection, self.view):
                self._rename(connection, Part.KEPT, None)
                self._keep_serving(connection)
                self._rename(connection, None, Part.SERVING)
            else:
                self._drop(connection, Part.SERVING)
                self._rename(connection, Part.KEPT, Part.SERVING)

    def _keep_serving(self, connection: sqlite3.Connection) -> None:
        """Make the serving part the kept part."""
        for (name,) in connection.execute(
            "SELECT name FROM sqlite_master WHERE type = 'trigger' AND tbl_name = ? COLLATE NOCASE",
            (self.view,),
        ).fetchall():
            connection.execute(f"DROP TRIGGER {quoted(name)}")
        self._rename(connection, Part.SERVING, Part.KEPT)

    def _rename(self, connection: sqlite3.Connection, source: Part | None, target: Part | None) -> None:
        """Rename a part and its table. None stands for a part that exists only within the transaction."""
        moving = f"_headrace_{_MOVING}_{self.view}"
        old = self._table_name(source) if source else moving
        new = self._table_name(target) if target else moving
        connection.execute(f"ALTER TABLE {quoted(old)} RENAME TO {quoted(new)}")
        connection.execute(_UPDATE_PART, (target or _MOVING, new, self.view, source or _MOVING))
        self._tables.clear()

    def drop(self, part: Part, fence: Fence) -> None:
        check_droppable(self.view, part)
        with self._file.transaction() as connection:
            check_fence(self.view, fence, self._owner(connection), None)
            self._drop(connection, part)

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


def _table_exists(connection: sqlite3.Connection, name: str) -> bool:
    row = connection.execute(
        "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = ? COLLATE NOCASE", (name,)
    ).fetchone()
    return row is not None


def _indexes_of_users(connection: sqlite3.Connection, table: str) -> list[tuple[str, str]]:
    """Return names and statements."""
    return connection.execute(
        "SELECT name, sql FROM sqlite_master WHERE type = 'index' AND tbl_name = ? COLLATE NOCASE"
        " AND sql IS NOT NULL",
        (table,),
    ).fetchall()


def _create_index(connection: sqlite3.Connection, name: str, statement: str) -> None:
    """Create the index, unless the new table does not have one of its columns. If the kept part has an index with this
    name, use another name.
    """
    own_name = _INDEX_PREFIX.sub("", name)
    names = itertools.chain([own_name], (f"_headrace_{number}_{own_name}" for number in itertools.count(2)))
    free = next(
        name
        for name in names
        if not connection.execute(
            "SELECT 1 FROM sqlite_master WHERE name = ? COLLATE NOCASE", (name,)
        ).fetchone()
    )
    try:
        connection.execute(_CREATE_INDEX.sub(lambda match: match[1] + quoted(free), statement, count=1))
    except sqlite3.OperationalError as error:
        if "no such column" not in str(error):
            raise
