"""Translates SQLite's errors to store errors, with a hint about what to do."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator
from pathlib import Path

from headrace.stores.errors import (
    StoreBusy,
    StoreDamaged,
    StoreError,
    StoreForeign,
    StoreFull,
    StoreUnusable,
)

__all__ = ["translate_errors", "translated"]


@contextlib.contextmanager
def translate_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except sqlite3.Error as error:
        raise translated(path, error) from error


def translated(path: Path, error: sqlite3.Error) -> StoreError:
    code = getattr(error, "sqlite_errorcode", 0)
    message = f"{error} ({getattr(error, 'sqlite_errorname', 'no code')})"
    match code & 0xFF:
        case sqlite3.SQLITE_BUSY | sqlite3.SQLITE_LOCKED:
            return StoreBusy(
                f"another program is writing {path}: {message}", hint="end the other program's transaction"
            )
        case sqlite3.SQLITE_FULL:
            return StoreFull(
                f"no space left for {path}: {message}", hint="free some space; the follower retries"
            )
        case sqlite3.SQLITE_IOERR:
            return StoreFull(
                f"cannot read or write {path}: {message}", hint="check the disk; the follower retries"
            )
        case sqlite3.SQLITE_NOTADB:
            return StoreForeign(
                f"{path} is not a SQLite file: {message}",
                hint="choose another file for the store; this file was not changed",
            )
        case sqlite3.SQLITE_CORRUPT:
            return StoreDamaged(
                f"{path} is damaged: {message}",
                hint="move the file and its -wal and -shm files to another place; the followers then rebuild the views"
                " from the log",
            )
        case sqlite3.SQLITE_READONLY | sqlite3.SQLITE_CANTOPEN | sqlite3.SQLITE_PERM | sqlite3.SQLITE_AUTH:
            return StoreUnusable(
                f"cannot write {path}: {message}", hint="check the owner of the file and of its directory"
            )
    return StoreError(f"{path}: {message}")
