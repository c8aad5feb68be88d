"""SQLite files of views, read with sqlite3."""

from __future__ import annotations

import contextlib
import functools
import json
import sqlite3
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from faults.stores.port import FaultyStore, Snapshot, StoreFaults, StoreFixture
from headrace.model.store import SQLite
from headrace.model.store import Store as Declared
from headrace.stores.sqlite import writer
from headrace.stores.sqlite.writer import SqliteWriter
from headrace.stores.writer import StoreWriter

__all__ = ["FAULTS", "FIXTURE", "SqliteFaults", "SqliteFixture"]


class SqliteFixture(StoreFixture):
    def __init__(self, home: Path) -> None:
        super().__init__(home)
        self.path = home / "shop.db"

    def open(self, view: str = "sales") -> StoreWriter:
        return SqliteWriter(self.path, view)

    def read(self, view: str = "sales") -> tuple[int, list[tuple[Any, ...]]] | None:
        with contextlib.closing(sqlite3.connect(f"file:{self.path}?mode=ro", uri=True)) as connection:
            connection.execute("BEGIN")
            row = connection.execute(
                "SELECT batch, shape FROM _headrace_views WHERE view = ? AND part = 'serving'", (view,)
            ).fetchone()
            if row is None:
                return None
            key = ", ".join(json.loads(row[1])["key"])
            return row[0], connection.execute(f'SELECT * FROM "{view}" ORDER BY {key}').fetchall()

    def declared(self) -> Declared:
        return SQLite()

    def opener(self) -> str:
        return f"headrace.stores.sqlite.writer:SqliteWriter(Path({str(self.path)!r}), 'sales')"

    def close(self) -> None:
        """Everything is in ``home``; nothing to remove."""


class SqliteFaults(StoreFaults):
    waits_for_zombie = True

    def store_class(self) -> type[Any]:
        return SqliteWriter

    def fencing_module(self) -> ModuleType:
        return writer

    def open(self, store_class: type[Any], address: str, view: str) -> StoreWriter:
        return store_class(Path(address), view)  # type: ignore[no-any-return]

    @contextlib.contextmanager
    def create(self, home: Path) -> Iterator[FaultyStore]:
        yield FaultySqlite(home / "shop.db")


class FaultySqlite(FaultyStore):
    """A file cannot be stopped. Instead, another connection holds its lock."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.address = str(path)
        self._lock_holder: sqlite3.Connection | None = None

    @contextlib.contextmanager
    def open_snapshot_reader(self, view: str) -> Iterator[Callable[[], Snapshot | None]]:
        yield functools.partial(self._read_snapshot, view)

    def _read_snapshot(self, view: str) -> Snapshot | None:
        if not self.path.exists():
            return None
        address = f"file:{self.path}?mode=ro"
        try:
            with contextlib.closing(
                sqlite3.connect(address, uri=True, timeout=10, isolation_level=None)
            ) as connection:
                connection.execute("BEGIN")
                position = connection.execute(
                    "SELECT generation, batch FROM _headrace_views WHERE view = ? AND part = 'serving'",
                    (view,),
                ).fetchone()
                rows = connection.execute(f'SELECT * FROM "{view}"').fetchall() if position else []
        except sqlite3.OperationalError:
            return None
        return (*position, {row[0]: row for row in rows}) if position else None

    def stop(self) -> None:
        self._lock_holder = sqlite3.connect(self.path, timeout=60, isolation_level=None)
        self._lock_holder.execute("BEGIN IMMEDIATE")

    def start(self) -> None:
        assert self._lock_holder is not None
        self._lock_holder.close()

    def wipe(self) -> None:
        for suffix in ("", "-wal", "-shm"):
            self.path.with_name(self.path.name + suffix).unlink(missing_ok=True)

    def back_up(self) -> object:
        backup = self.path.with_name(f"backup-{time.monotonic_ns()}.db")
        self._copy(self.path, backup)
        return backup

    def restore(self, backup: object) -> None:
        """Copy into the existing file, because a follower has it open."""
        assert isinstance(backup, Path)
        self._copy(backup, self.path)

    def _copy(self, source: Path, target: Path) -> None:
        with (
            contextlib.closing(sqlite3.connect(source)) as reader,
            contextlib.closing(sqlite3.connect(target, timeout=60)) as writer,
        ):
            reader.backup(writer)


FIXTURE = SqliteFixture
FAULTS = SqliteFaults()
