"""Views in a SQLite file, for faults."""

from __future__ import annotations

import contextlib
import functools
import sqlite3
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from bench.faults.store_place import Seen, StoreKind, StorePlace
from headrace.views.store import Store

__all__ = ["SqliteKind"]


class SqliteKind(StoreKind):
    waits_for_zombie = True

    def product(self) -> type[Any]:
        from headrace.views.sqlite import SqliteStore

        return SqliteStore

    def fencing(self) -> ModuleType:
        from headrace.views import sqlite

        return sqlite

    def open(self, product: type[Any], address: str, view: str) -> Store:
        return product(Path(address), view)  # type: ignore[no-any-return]

    @contextlib.contextmanager
    def place(self, home: Path) -> Iterator[StorePlace]:
        yield SqlitePlace(home / "shop.db")


class SqlitePlace(StorePlace):
    """A file is not stopped, but somebody may hold its lock."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.address = str(path)
        self._holder: sqlite3.Connection | None = None

    @contextlib.contextmanager
    def watching(self, view: str) -> Iterator[Callable[[], Seen | None]]:
        yield functools.partial(self._look, view)

    def _look(self, view: str) -> Seen | None:
        if not self.path.exists():
            return None
        address = f"file:{self.path}?mode=ro"
        try:
            with contextlib.closing(
                sqlite3.connect(address, uri=True, timeout=10, isolation_level=None)
            ) as connection:
                connection.execute("BEGIN")
                found = connection.execute(
                    "SELECT generation, batch FROM _headrace_views WHERE view = ? AND part = 'serving'",
                    (view,),
                ).fetchone()
                rows = connection.execute(f'SELECT * FROM "{view}"').fetchall() if found else []
        except sqlite3.OperationalError:
            return None
        return (*found, {row[0]: row for row in rows}) if found else None

    def stop(self) -> None:
        self._holder = sqlite3.connect(self.path, timeout=60, isolation_level=None)
        self._holder.execute("BEGIN IMMEDIATE")

    def start(self) -> None:
        assert self._holder is not None
        self._holder.close()

    def wipe(self) -> None:
        for end in ("", "-wal", "-shm"):
            self.path.with_name(self.path.name + end).unlink(missing_ok=True)

    def keep(self) -> object:
        kept = self.path.with_name(f"kept-{time.monotonic_ns()}.db")
        self._copy(self.path, kept)
        return kept

    def restore(self, kept: object) -> None:
        """Into the file that there is: under an open one, its name must not change hands."""
        assert isinstance(kept, Path)
        self._copy(kept, self.path)

    def _copy(self, source: Path, target: Path) -> None:
        with (
            contextlib.closing(sqlite3.connect(source)) as one,
            contextlib.closing(sqlite3.connect(target, timeout=60)) as other,
        ):
            one.backup(other)
