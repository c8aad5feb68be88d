"""A SQLite file with a copy of what a topic says: it can be thrown away, since nothing is in it that the topic lacks.

``synchronous`` is NORMAL and not OFF: after a power loss the place up to which the topic was read could otherwise be
there without what was read before it.
"""

from __future__ import annotations

import sqlite3
from pathlib import Path

from headrace.private import create_private, make_private_dir

__all__ = ["open_copy"]

_BUSY_S = 10.0


def open_copy(path: Path | None, tables: str, version: int) -> sqlite3.Connection:
    """Made with its tables where it is not there, and anew where it cannot be read; without a path, in memory. Raises
    where somebody else keeps it busy: it is theirs too.
    """
    if path is None:
        return _prepared(":memory:", tables, version)
    make_private_dir(path.parent)
    try:
        return _prepared(path, tables, version)
    except sqlite3.DatabaseError as error:
        if getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_BUSY:
            raise
        for one in (path, path.with_name(f"{path.name}-wal"), path.with_name(f"{path.name}-shm")):
            one.unlink(missing_ok=True)
        return _prepared(path, tables, version)


def _prepared(path: Path | str, tables: str, version: int) -> sqlite3.Connection:
    if isinstance(path, Path):
        create_private(path)
    database = sqlite3.connect(path, timeout=_BUSY_S, isolation_level=None, check_same_thread=False)
    try:
        database.execute("PRAGMA journal_mode = WAL")
        database.execute("PRAGMA synchronous = NORMAL")
        database.execute("BEGIN IMMEDIATE")
        (found,) = database.execute("PRAGMA user_version").fetchone()
        if found != version:
            for statement in filter(str.strip, tables.split(";")):
                database.execute(statement)
            database.execute(f"PRAGMA user_version = {version}")
        database.execute("COMMIT")
    except BaseException:
        database.close()
        raise
    return database
