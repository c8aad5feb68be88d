"""Views in a SQLite file, each a table of its own with the view's name.

``_headrace_views`` has a row per view and part: the table's name, what it follows and how far (``Position``), and its
shape. ``_headrace_owners`` has a row per view: who may write it. Both are read and written in the transactions that
change the rows, so position, rows and owner agree at every moment, for every reader.

The types of columns are those that give back what was put in: INTEGER, REAL, TEXT, BLOB. Tables are not STRICT: a REAL
column must hold the text ``NaN``.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

import msgspec

from headrace.views.changes import Changes
from headrace.views.errors import NameRefused, PositionMoved, ShapeRefused, StoreForeign
from headrace.views.names import expect_view_name
from headrace.views.position import Position, Shape, Standing
from headrace.views.rows import Row
from headrace.views.sqlite_file import SqliteFile, told_as
from headrace.views.sqlite_table import SqliteTable, quoted
from headrace.views.store import Fence, Owner, Part, Store, next_owner, refuse_stale

__all__ = ["SqliteStore", "standing_in"]

_STANDINGS_KEPT = 64
_POSITION = (
    "topic, topic_id, generation, batch, offsets, progress_id, progress_offset, removed_below, complete_ms,"
    " stored_ms, dead, sources"
)
_POSITION_NAMES = _POSITION.split(", ")
_offsets = msgspec.json.Decoder(dict[int, int]).decode
_HEAD = "view, part, name, shape, wish, reason"
_INSERT = f"INSERT INTO _headrace_views ({_HEAD}, {_POSITION}) VALUES ({', '.join('?' * 18)})"  # noqa: S608
_MOVE = f"UPDATE _headrace_views SET ({_POSITION}) = ({', '.join('?' * 12)}) WHERE view = ? AND part = ?"  # noqa: S608
_BESIDE = "_headrace_new_"


class SqliteStore(Store):
    def __init__(self, path: Path, view: str) -> None:
        expect_view_name(view)
        self.view = view
        self.path = path
        self._file = SqliteFile(path)
        self._tables: dict[Part, SqliteTable] = {}

    def close(self) -> None:
        self._file.close()

    # Who may write

    def take(self, name: str, now_ms: int, before: Owner | None = None) -> Owner:
        with self._file.transaction() as connection:
            found = connection.execute(
                "SELECT view FROM _headrace_owners WHERE view = ?", (self.view,)
            ).fetchone()
            if found and found[0] != self.view:
                raise NameRefused(
                    f"view {self.view!r} cannot be beside view {found[0]!r} in {self.path}",
                    hint="SQLite does not tell names apart by case: rename one, or give it its own file",
                )
            owner = next_owner(self.view, name, self._owner(connection), before)
            connection.execute(
                "INSERT INTO _headrace_owners VALUES (?, ?, ?, ?, 0) ON CONFLICT (view) DO UPDATE"
                " SET epoch = excluded.epoch, owner = excluded.owner, taken_ms = excluded.taken_ms",
                (self.view, owner.epoch, owner.name, now_ms),
            )
        return owner

    def _owner(self, connection: sqlite3.Connection) -> Owner | None:
        found = connection.execute(
            "SELECT epoch, owner FROM _headrace_owners WHERE view = ?", (self.view,)
        ).fetchone()
        return Owner(*found) if found else None

    # What there is

    def standing(self, part: Part) -> Standing | None:
        with self._file.reading() as connection:
            return self._standing(connection, part)

    def _standing(self, connection: sqlite3.Connection, part: Part) -> Standing | None:
        return standing_in(connection, self.view, part)

    def _table(self, connection: sqlite3.Connection, part: Part) -> SqliteTable:
        """Kept, since its shape does not change while it has this place."""
        if part not in self._tables:
            found = self._standing(connection, part)
            if found is None:
                raise PositionMoved(f"view {self.view!r} has no {part} table in {self.path}")
            self._tables[part] = SqliteTable(self._name(part), found.shape)
        return self._tables[part]

    def _name(self, part: Part) -> str:
        return self.view if part is Part.SERVING else f"{_BESIDE}{self.view}"

    def rows(self, part: Part = Part.SERVING) -> Iterator[Row]:
        with self._file.reading() as connection:
            table = self._table(connection, part)
            yield from table.rows(connection)

    # What changes it

    def begin(self, shape: Shape, position: Position, reason: str, fence: Fence) -> Standing:
        table = SqliteTable(self._name(Part.BUILDING), shape)
        with self._file.transaction() as connection:
            refuse_stale(self.view, fence, self._owner(connection), None)
            serving = self._standing(connection, Part.SERVING)
            if serving is not None and _is_older(position, serving.position):
                refuse_stale(self.view, fence, self._owner(connection), serving.position.generation)
            if serving is None:
                self._expect_name_free(connection)
            self._drop(connection, Part.BUILDING)
            try:
                connection.execute(table.create)
            except sqlite3.OperationalError as error:
                raise ShapeRefused(
                    f"view {self.view!r}: SQLite refuses its columns: {error}",
                    hint="columns may not differ by case alone, and there may be 2000 of them",
                ) from error
            (wish,) = connection.execute(
                "SELECT wish FROM _headrace_owners WHERE view = ?", (self.view,)
            ).fetchone()
            head = (self.view, Part.BUILDING, table.name, shape.tell(), wish, reason)
            connection.execute(_INSERT, (*head, *_told(position)))
        self._tables[Part.BUILDING] = table
        return Standing(shape, position, wish, reason)

    def _expect_name_free(self, connection: sqlite3.Connection) -> None:
        found = connection.execute(
            "SELECT type FROM sqlite_master WHERE name = ? COLLATE NOCASE", (self.view,)
        ).fetchone()
        if found:
            raise StoreForeign(
                f"{self.path} has a {found[0]} {self.view!r} that no follower made",
                hint="rename it, or name the view otherwise; it was left as it is",
            )

    def apply(self, part: Part, changes: Changes, before: Position, after: Position, fence: Fence) -> None:
        with self._file.transaction() as connection:
            self._expect(connection, part, before, fence)
            if after.generation != fence.generation:
                refuse_stale(self.view, fence, fence.owner, after.generation)
            table = self._table(connection, part)
            if deletes := changes.deletes:
                connection.executemany(table.delete, deletes)
            if upserts := changes.upserts:
                connection.executemany(table.upsert, upserts)
            connection.execute(_MOVE, (*_told(after), self.view, part))

    def _expect(
        self, connection: sqlite3.Connection, part: Part, before: Position | None, fence: Fence
    ) -> Position:
        """The part is as its follower left it, and the follower is the one that may write."""
        found = connection.execute(
            f"SELECT {_POSITION} FROM _headrace_views WHERE view = ? AND part = ?",  # noqa: S608
            (self.view, part),
        ).fetchone()
        position = _position(list(found)) if found else None
        refuse_stale(self.view, fence, self._owner(connection), position.generation if position else None)
        if position is None or (before is not None and position != before):
            raise PositionMoved(
                f"view {self.view!r} in {self.path} is not where its follower left it",
                detail=f"left at {before}, found at {position}",
                hint="was the store restored from a backup? It goes on from where the store is",
            )
        return position

    def swap(self, fence: Fence) -> None:
        with self._file.transaction() as connection:
            self._expect(connection, Part.BUILDING, None, fence)
            built = self._table(connection, Part.BUILDING)
            if self._standing(connection, Part.SERVING) is None:
                self._expect_name_free(connection)
            indexes = _users_indexes(connection, self.view)
            self._drop(connection, Part.SERVING)
            connection.execute(f"ALTER TABLE {quoted(built.name)} RENAME TO {quoted(self.view)}")
            connection.execute(
                "UPDATE _headrace_views SET part = ?, name = ? WHERE view = ? AND part = ?",
                (Part.SERVING, self.view, self.view, Part.BUILDING),
            )
            for statement in indexes:
                _try(connection, statement)
        self._tables.clear()

    def drop_building(self, fence: Fence) -> None:
        with self._file.transaction() as connection:
            refuse_stale(self.view, fence, self._owner(connection), None)
            self._drop(connection, Part.BUILDING)

    def _drop(self, connection: sqlite3.Connection, part: Part) -> None:
        """Only what ``_headrace_views`` knows."""
        gone = connection.execute(
            "DELETE FROM _headrace_views WHERE view = ? AND part = ? RETURNING name", (self.view, part)
        ).fetchall()
        for (name,) in gone:
            connection.execute(f"DROP TABLE IF EXISTS {quoted(name)}")
        self._tables.pop(part, None)

    # Wishes

    def ask_rebuild(self) -> None:
        with self._file.transaction() as connection:
            changed = connection.execute(
                "UPDATE _headrace_owners SET wish = wish + 1 WHERE view = ?", (self.view,)
            )
            if not changed.rowcount:
                connection.execute("INSERT INTO _headrace_owners VALUES (?, 0, '', 0, 0)", (self.view,))

    def wish(self) -> int:
        with told_as(self.path):
            found = self._file.connection.execute(
                "SELECT wish FROM _headrace_owners WHERE view = ?", (self.view,)
            ).fetchone()
        return int(found[0]) if found else 0


def standing_in(connection: sqlite3.Connection, view: str, part: Part) -> Standing | None:
    found = connection.execute(
        f"SELECT shape, wish, reason, {_POSITION} FROM _headrace_views WHERE view = ? AND part = ?",  # noqa: S608
        (view, part),
    ).fetchone()
    if found is None:
        return None
    return _standing(found)


@lru_cache(_STANDINGS_KEPT)
def _standing(found: tuple[Any, ...]) -> Standing:
    """One and the same as long as nothing is written: whoever asks can tell by that what it has worked out already."""
    shape, wish, reason, *position = found
    return Standing(Shape.told(shape), _position(position), wish, reason)


def _is_older(new: Position, serving: Position) -> bool:
    """An older generation of the same flow; generations of another one, or of one begun anew, do not compare."""
    return new.progress_id == serving.progress_id and new.generation < serving.generation


def _told(position: Position) -> tuple[object, ...]:
    return (
        position.topic,
        position.topic_id,
        position.generation,
        position.batch,
        msgspec.json.encode(position.offsets).decode(),
        position.progress_id,
        position.progress_offset,
        msgspec.json.encode(position.removed_below).decode(),
        position.complete_ms,
        position.stored_ms,
        position.dead,
        msgspec.json.encode(position.sources).decode(),
    )


def _position(found: list[object]) -> Position:
    told = dict(zip(_POSITION_NAMES, found, strict=True))
    for name in ("offsets", "removed_below"):
        told[name] = _offsets(str(told[name]))
    told["sources"] = msgspec.json.decode(str(told["sources"]))
    return msgspec.convert(told, Position)


def _users_indexes(connection: sqlite3.Connection, table: str) -> list[str]:
    found = connection.execute(
        "SELECT sql FROM sqlite_master WHERE type = 'index' AND tbl_name = ? COLLATE NOCASE AND sql IS NOT NULL",
        (table,),
    )
    return [sql for (sql,) in found]


def _try(connection: sqlite3.Connection, statement: str) -> None:
    """An index on a column that the new table does not have goes with the old one."""
    try:
        connection.execute(statement)
    except sqlite3.OperationalError as error:
        if "no such column" not in str(error):
            raise
