"""A SQLite file of views, seen by sqlite3."""

from __future__ import annotations

import contextlib
import json
import sqlite3
from pathlib import Path
from typing import Any

from headrace.model.store import SQLite
from headrace.model.store import Store as Declared
from headrace.views.sqlite import SqliteStore
from headrace.views.store import Store
from tests.contract.see import See

__all__ = ["SeeSqlite"]


class SeeSqlite(See):
    def __init__(self, home: Path) -> None:
        super().__init__(home)
        self.path = home / "shop.db"

    def open(self, view: str = "sales") -> Store:
        return SqliteStore(self.path, view)

    def look(self, view: str = "sales") -> tuple[int, list[tuple[Any, ...]]] | None:
        with contextlib.closing(sqlite3.connect(f"file:{self.path}?mode=ro", uri=True)) as connection:
            connection.execute("BEGIN")
            found = connection.execute(
                "SELECT batch, shape FROM _headrace_views WHERE view = ? AND part = 'serving'", (view,)
            ).fetchone()
            if found is None:
                return None
            key = ", ".join(json.loads(found[1])["key"])
            return found[0], connection.execute(f'SELECT * FROM "{view}" ORDER BY {key}').fetchall()

    def declared(self) -> Declared:
        return SQLite()

    def opener(self) -> str:
        return f"headrace.views.sqlite:SqliteStore(Path({str(self.path)!r}), 'sales')"

    def close(self) -> None:
        """The test's folder is all there is."""
