"""The layout of a SQLite file of views.

Each view is a table with the view's name, which is the part ``serving``. During a rebuild, the part ``building`` is in
the table ``_headrace_new_<view>``. The part ``kept``, a former serving part, is in ``_headrace_kept_<view>``.
``_headrace_views`` has one row for each part: the name of the part's table, its ``Position`` and its ``ViewSchema``. A
swap renames tables and changes these rows in one transaction. ``_headrace_owners`` has a row per view, with the
follower that may write it. The column types INTEGER, REAL, TEXT and BLOB return values unchanged. Tables are not
STRICT, because a REAL column must also accept the text ``NaN``.

The journal is a write-ahead log, so readers and the follower never wait for each other. ``synchronous`` is
NORMAL, so a commit does not sync. A power loss can undo the last commits, but never a part of a commit. The
file then has an earlier position, and the rows of that position. The follower continues from it, and applies
the lost batches again. A sync per batch would cost milliseconds without a benefit. If only the process is
killed, no commit is lost.

The application id in the file's header marks a file of views. A follower never changes a file with another id.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import threading
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

import msgspec

from headrace.files import create_private, make_private_dir
from headrace.model.kinds import Field, Scalar
from headrace.stores.errors import SchemaRefused, StoreForeign, StoreReplaced, StoreUnusable
from headrace.stores.position import Position, ViewSchema, ViewState
from headrace.stores.rows import Row
from headrace.stores.sqlite.errors import translate_errors
from headrace.stores.writer import Part

__all__ = [
    "APPLICATION_ID",
    "FORMAT",
    "POSITION_COLUMNS",
    "SqliteFile",
    "SqliteTable",
    "cached_table",
    "identity_of",
    "position_from_row",
    "position_values",
    "quoted",
    "read_state",
    "read_views",
]

APPLICATION_ID = int.from_bytes(b"HDRC")
FORMAT = 2
POSITION_COLUMNS = (
    "topic, topic_id, generation, batch, offsets, progress_id, progress_offset, removed_below, complete_ms,"
    " stored_ms, dead, sources"
)
_POSITION_NAMES = POSITION_COLUMNS.split(", ")
_BUSY_MS = 1_000
_CACHE_KIB = 8_192
_CHECKPOINT_PAGES = 4_096
_ROWS_PER_FETCH = 1_000
_TABLES_CACHED = 256
_STATES_CACHED = 64
_TYPES = {"int": "INTEGER", "bool": "INTEGER", "float": "REAL", "bytes": "BLOB"}
_CREATE = """
CREATE TABLE _headrace_owners (
    view TEXT PRIMARY KEY COLLATE NOCASE, epoch INTEGER NOT NULL, owner TEXT NOT NULL, taken_ms INTEGER NOT NULL,
    wish INTEGER NOT NULL
) WITHOUT ROWID;
CREATE TABLE _headrace_views (
    view TEXT NOT NULL COLLATE NOCASE, part TEXT NOT NULL, name TEXT NOT NULL, topic TEXT NOT NULL,
    topic_id TEXT NOT NULL, generation INTEGER NOT NULL, batch INTEGER NOT NULL, offsets TEXT NOT NULL,
    progress_id TEXT NOT NULL, progress_offset INTEGER NOT NULL, removed_below TEXT NOT NULL,
    complete_ms INTEGER NOT NULL, stored_ms INTEGER NOT NULL, dead INTEGER NOT NULL, shape TEXT NOT NULL,
    wish INTEGER NOT NULL, reason TEXT NOT NULL, sources TEXT NOT NULL DEFAULT '{}', PRIMARY KEY (view, part)
) WITHOUT ROWID;
"""
_UPGRADE_FROM_1 = "ALTER TABLE _headrace_views ADD COLUMN sources TEXT NOT NULL DEFAULT '{}'"
_decode_offsets = msgspec.json.Decoder(dict[int, int]).decode

_write_locks: dict[str, threading.Lock] = {}
"""A lock per file for the writers of this process, so that they do not wait in SQLite, which sleeps and retries."""


class SqliteFile:
    """A connection for writing. Use it in one thread. It creates the file and its tables."""

    def __init__(self, path: Path) -> None:
        self.path = path
        if path.is_dir():
            raise StoreUnusable(
                f"{path} is a directory", hint="choose a file for the store, or move the directory"
            )
        with translate_errors(path):
            try:
                make_private_dir(path.parent)
                create_private(path)
                self.connection = sqlite3.connect(
                    path, timeout=_BUSY_MS / 1_000, isolation_level=None, cached_statements=32
                )
            except OSError as error:
                raise StoreUnusable(f"cannot create {path}: {error.strerror}") from error
            try:
                self._prepare()
                self._identity = identity_of(path)
            except BaseException:
                self.connection.close()
                raise
        self._write_lock = _write_locks.setdefault(str(path.resolve()), threading.Lock())

    def _prepare(self) -> None:
        execute = self.connection.execute
        if not self._is_ours():
            execute("PRAGMA journal_mode = WAL")
        if self._format() < FORMAT:
            execute("BEGIN IMMEDIATE")
            # Check again, because another follower might have created or upgraded the file in between.
            version = self._format()
            if not self._is_ours():
                execute(f"PRAGMA application_id = {APPLICATION_ID}")
                for statement in filter(str.strip, _CREATE.split(";")):
                    execute(statement)
            elif version < FORMAT:
                execute(_UPGRADE_FROM_1)
            execute(f"PRAGMA user_version = {FORMAT}")
            execute("COMMIT")
        execute("PRAGMA synchronous = NORMAL")
        execute(f"PRAGMA cache_size = -{_CACHE_KIB}")
        execute(f"PRAGMA wal_autocheckpoint = {_CHECKPOINT_PAGES}")
        # A swap renames tables. Without this pragma, SQLite refuses a rename if users have defined SQL views on a table
        # that was dropped, or changes their SQL views to read the renamed table. With it, their SQL views read the
        # table that now has the view's name.
        execute("PRAGMA legacy_alter_table = ON")

    def _format(self) -> int:
        (version,) = self.connection.execute("PRAGMA user_version").fetchone()
        return int(version)

    def _is_ours(self) -> bool:
        """Return whether a follower created the file; false for an empty file. Raise if another program created it."""
        # Use one statement, because another follower might create the tables at the same time.
        application_id, version, object_count = self.connection.execute(
            "SELECT (SELECT application_id FROM pragma_application_id), (SELECT user_version FROM pragma_user_version),"
            " (SELECT count(*) FROM sqlite_master)"
        ).fetchone()
        if application_id == APPLICATION_ID:
            if version > FORMAT:
                raise StoreUnusable(
                    f"{self.path} has format {version}; this release reads formats up to {FORMAT}",
                    hint="use the release that wrote it, or move the file to another place; the followers then rebuild"
                    " the views",
                )
            return True
        if object_count or application_id:
            raise StoreForeign(
                f"{self.path} is a SQLite file that no follower created",
                detail=f"application id {application_id}, {object_count} tables and indexes",
                hint="choose another file for the store; this file was not changed",
            )
        return False

    @contextlib.contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """Run the block in a transaction: commit at its end, or roll back if it raises an error."""
        with translate_errors(self.path), self._write_lock:
            self.connection.execute("BEGIN IMMEDIATE")
            try:
                self._check_same_file()
                yield self.connection
                self.connection.execute("COMMIT")
            except BaseException:
                if self.connection.in_transaction:
                    self.connection.execute("ROLLBACK")
                raise

    @contextlib.contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """Run the block in a read transaction, so that all its reads see the same state of the file.

        Also check whether the file was replaced. SQLite can still read a deleted file, so the follower of an idle view
        would otherwise detect this only at its next write.
        """
        with translate_errors(self.path):
            self._check_same_file()
            self.connection.execute("BEGIN")
            try:
                yield self.connection
            finally:
                self.connection.execute("ROLLBACK")

    def _check_same_file(self) -> None:
        if identity_of(self.path) != self._identity:
            raise StoreReplaced(
                f"{self.path} was removed or replaced while it was open",
                hint="the follower continues with the new file, or rebuilds the view",
            )

    def close(self) -> None:
        self.connection.close()


def identity_of(path: Path) -> tuple[int, int] | None:
    """Return device and inode, to detect a replaced file. SQLite itself continues to write to a deleted file."""
    try:
        stat = os.stat(path)  # noqa: PTH116  a thousand times a second
    except FileNotFoundError:
        return None
    return stat.st_dev, stat.st_ino


class SqliteTable:
    """The SQL of one view's table, built once per schema and used for every batch."""

    def __init__(self, name: str, schema: ViewSchema) -> None:
        table, names = quoted(name), [quoted(column) for column in schema.names]
        key = ", ".join(map(quoted, schema.key))
        columns = ", ".join(f"{quoted(field.name)} {_column_type(field)}" for field in schema.fields)
        by_key = " AND ".join(f"{quoted(column)} = ?" for column in schema.key)
        self.name = name
        self.create = f"CREATE TABLE {table} ({columns}, PRIMARY KEY ({key})) WITHOUT ROWID"
        self.upsert = f"REPLACE INTO {table} VALUES ({', '.join('?' * len(names))})"  # noqa: S608
        self.delete = f"DELETE FROM {table} WHERE {by_key}"  # noqa: S608
        self.select = f"SELECT {', '.join(names)} FROM {table}"  # noqa: S608
        self.select_one = f"{self.select} WHERE {by_key}"
        self._select_in_order = f"{self.select} ORDER BY {key}"
        self._bools = [index for index, field in enumerate(schema.fields) if field.kind == Scalar("bool")]

    def rows(self, connection: sqlite3.Connection) -> Iterator[Row]:
        """Yield all rows, in the order of the key."""
        return self.fetch(connection.execute(self._select_in_order))

    def fetch(self, cursor: sqlite3.Cursor) -> Iterator[Row]:
        """Yield the rows of a cursor that executed ``select``."""
        while rows := cursor.fetchmany(_ROWS_PER_FETCH):
            yield from map(self._with_bools, rows) if self._bools else rows

    def _with_bools(self, stored_row: tuple[object, ...]) -> Row:
        row = list(stored_row)
        for index in self._bools:
            row[index] = None if row[index] is None else bool(row[index])
        return tuple(row)  # type: ignore[arg-type]


@lru_cache(_TABLES_CACHED)
def cached_table(name: str, schema: ViewSchema) -> SqliteTable:
    """Return the table for readers. All queries share it."""
    return SqliteTable(name, schema)


def quoted(name: str) -> str:
    if "\0" in name or not name:
        raise SchemaRefused(f"{name!r} is not a valid name of a column or table in SQLite")
    doubled = name.replace('"', '""')
    return f'"{doubled}"'


def _column_type(field: Field) -> str:
    return _TYPES.get(field.kind.name, "TEXT") if isinstance(field.kind, Scalar) else "TEXT"


# Rows of _headrace_views


def read_state(connection: sqlite3.Connection, view: str, part: Part) -> ViewState | None:
    stored_row = connection.execute(
        f"SELECT shape, wish, reason, {POSITION_COLUMNS} FROM _headrace_views WHERE view = ? AND part = ?",  # noqa: S608
        (view, part),
    ).fetchone()
    return None if stored_row is None else _state_from_row(stored_row)


@lru_cache(_STATES_CACHED)
def _state_from_row(stored_row: tuple[Any, ...]) -> ViewState:
    """Return the same object until the row changes. Callers compare it by identity to reuse derived values."""
    schema, rebuild_requests, reason, *position = stored_row
    return ViewState(ViewSchema.parse(schema), position_from_row(position), rebuild_requests, reason)


def read_views(connection: sqlite3.Connection) -> Iterator[tuple[str, Part, ViewState]]:
    # The column ``sources`` is missing if the file is from an older release and no follower has opened it yet.
    has_sources = connection.execute(
        "SELECT 1 FROM pragma_table_info('_headrace_views') WHERE name = 'sources'"
    ).fetchone()
    columns = POSITION_COLUMNS if has_sources else POSITION_COLUMNS.replace("sources", "'{}'")
    for view, part, *row in connection.execute(
        f"SELECT view, part, shape, wish, reason, {columns} FROM _headrace_views ORDER BY view, part DESC"  # noqa: S608
    ).fetchall():
        yield view, Part(part), _state_from_row(tuple(row))


def position_values(position: Position) -> tuple[object, ...]:
    """Return the values in the order of ``POSITION_COLUMNS``."""
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


def position_from_row(row: list[Any]) -> Position:
    values = dict(zip(_POSITION_NAMES, row, strict=True))
    for name in ("offsets", "removed_below"):
        values[name] = _decode_offsets(str(values[name]))
    values["sources"] = msgspec.json.decode(str(values["sources"]))
    return msgspec.convert(values, Position)
