"""A SQLite file that views are kept in: how it is opened, what is written by one at a time, and what its errors mean.

The journal is a write-ahead log, so that readers never wait for a follower nor it for them. ``synchronous`` is NORMAL:
a commit is not synced by itself. A power loss may take the last commits away, whole ones, and a follower then finds an
earlier position with the rows of that position and applies again what came after; so a sync per batch would cost
milliseconds and protect nothing. A killed process loses nothing.

The file is known by its application id. Anything else at the path is left alone.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path

from headrace.private import create_private, make_private_dir
from headrace.views.errors import (
    StoreBusy,
    StoreDamaged,
    StoreError,
    StoreForeign,
    StoreFull,
    StoreReplaced,
    StoreUnusable,
)

__all__ = ["APPLICATION_ID", "FORMAT", "SqliteFile", "identity_of", "told_as"]

APPLICATION_ID = int.from_bytes(b"HDRC")
FORMAT = 2
_BUSY_MS = 1_000
_CACHE_KIB = 8_192
_CHECKPOINT_PAGES = 4_096
_TABLES = """
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
_FROM_1 = "ALTER TABLE _headrace_views ADD COLUMN sources TEXT NOT NULL DEFAULT '{}'"

_writing: dict[str, threading.Lock] = {}
"""One writer at a time within this process, in the order in which they come: SQLite's own way is to sleep and retry."""


class SqliteFile:
    """One connection, for one thread."""

    def __init__(self, path: Path) -> None:
        self.path = path
        if path.is_dir():
            raise StoreUnusable(
                f"{path} is a directory", hint="name a file for the store, or move the directory"
            )
        with told_as(path):
            try:
                make_private_dir(path.parent)
                create_private(path)
                self.connection = sqlite3.connect(
                    path, timeout=_BUSY_MS / 1_000, isolation_level=None, cached_statements=32
                )
            except OSError as error:
                raise StoreUnusable(f"{path} cannot be made: {error.strerror}") from error
            try:
                self._prepare()
                self._identity = identity_of(path)
            except BaseException:
                self.connection.close()
                raise
        self._lock = _writing.setdefault(str(path.resolve()), threading.Lock())

    def _prepare(self) -> None:
        execute = self.connection.execute
        if not self._is_ours():
            execute("PRAGMA journal_mode = WAL")
        if self._format() < FORMAT:
            execute("BEGIN IMMEDIATE")
            # Another one may have been here in between.
            found = self._format()
            if not self._is_ours():
                execute(f"PRAGMA application_id = {APPLICATION_ID}")
                for statement in filter(str.strip, _TABLES.split(";")):
                    execute(statement)
            elif found < FORMAT:
                execute(_FROM_1)
            execute(f"PRAGMA user_version = {FORMAT}")
            execute("COMMIT")
        execute("PRAGMA synchronous = NORMAL")
        execute(f"PRAGMA cache_size = -{_CACHE_KIB}")
        execute(f"PRAGMA wal_autocheckpoint = {_CHECKPOINT_PAGES}")
        # A rename must leave alone what users wrote on top of a view, which names the table that is replaced.
        execute("PRAGMA legacy_alter_table = ON")

    def _format(self) -> int:
        (version,) = self.connection.execute("PRAGMA user_version").fetchone()
        return int(version)

    def _is_ours(self) -> bool:
        """Raises if it is somebody else's; False for a file with nothing in it."""
        # In one statement: another follower may be making the file at this moment.
        application, version, things = self.connection.execute(
            "SELECT (SELECT application_id FROM pragma_application_id), (SELECT user_version FROM pragma_user_version),"
            " (SELECT count(*) FROM sqlite_master)"
        ).fetchone()
        if application == APPLICATION_ID:
            if version > FORMAT:
                raise StoreUnusable(
                    f"{self.path} has format {version}, and this release reads up to {FORMAT}",
                    hint="use the release that wrote it, or move the file away: the views are built again",
                )
            return True
        if things or application:
            raise StoreForeign(
                f"{self.path} is a SQLite file that no follower made",
                detail=f"application id {application}, {things} tables and indexes",
                hint="name another file for the store; this one was left as it is",
            )
        return False

    @contextlib.contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """All that is written within, or nothing."""
        with told_as(self.path), self._lock:
            self.connection.execute("BEGIN IMMEDIATE")
            try:
                self._expect_same_file()
                yield self.connection
                self.connection.execute("COMMIT")
            except BaseException:
                if self.connection.in_transaction:
                    self.connection.execute("ROLLBACK")
                raise

    @contextlib.contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """One state of the file for all that is read within. A file that has lost its name still reads as it was, so
        that is looked at too: a view that is idle would not notice otherwise until it is written again.
        """
        with told_as(self.path):
            self._expect_same_file()
            self.connection.execute("BEGIN")
            try:
                yield self.connection
            finally:
                self.connection.execute("ROLLBACK")

    def _expect_same_file(self) -> None:
        if identity_of(self.path) != self._identity:
            raise StoreReplaced(
                f"{self.path} was removed or replaced while it was open",
                hint="the view goes on with what is there now, or is built again",
            )

    def close(self) -> None:
        self.connection.close()


def identity_of(path: Path) -> tuple[int, int] | None:
    """Which file it is: SQLite goes on writing to one that has lost its name."""
    try:
        found = os.stat(path)  # noqa: PTH116  a thousand times a second
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino


@contextlib.contextmanager
def told_as(path: Path) -> Iterator[None]:
    """SQLite's errors, in our terms."""
    try:
        yield
    except sqlite3.Error as error:
        raise _translated(path, error) from error


def _translated(path: Path, error: sqlite3.Error) -> StoreError:
    code = getattr(error, "sqlite_errorcode", 0)
    told = f"{error} ({getattr(error, 'sqlite_errorname', 'no code')})"
    match code & 0xFF:
        case sqlite3.SQLITE_BUSY | sqlite3.SQLITE_LOCKED:
            return StoreBusy(
                f"{path} is being written by somebody else: {told}",
                hint="end the other program's transaction",
            )
        case sqlite3.SQLITE_FULL:
            return StoreFull(f"no space for {path}: {told}", hint="make room; it goes on by itself")
        case sqlite3.SQLITE_IOERR:
            return StoreFull(
                f"{path} cannot be read or written: {told}", hint="look at the disk; it is tried again"
            )
        case sqlite3.SQLITE_NOTADB:
            return StoreForeign(
                f"{path} is not a SQLite file: {told}",
                hint="name another file for the store; this one was left as it is",
            )
        case sqlite3.SQLITE_CORRUPT:
            return StoreDamaged(
                f"{path} is damaged: {told}",
                hint="move it away, with its -wal and -shm: the views are built again from the log",
            )
        case sqlite3.SQLITE_READONLY | sqlite3.SQLITE_CANTOPEN | sqlite3.SQLITE_PERM | sqlite3.SQLITE_AUTH:
            return StoreUnusable(
                f"{path} cannot be written: {told}", hint="check who owns the file and its directory"
            )
    return StoreError(f"{path}: {told}")
