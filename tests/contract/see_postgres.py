"""A database of views on the tests' own server, seen by psycopg."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import psycopg

from headrace.views.postgres.store import PostgresStore
from headrace.views.store import Store
from tests.contract.see import See
from tests.support.postgres import shared_server

__all__ = ["SeePostgres"]


class SeePostgres(See):
    def __init__(self, home: Path) -> None:
        super().__init__(home)
        self.server = shared_server()
        self.database = self.server.database()
        self.url = self.server.url(self.database)
        self._connections = threading.local()

    def open(self, view: str = "sales") -> Store:
        return PostgresStore(self.url, "public", view)

    def look(self, view: str = "sales") -> tuple[int, list[tuple[Any, ...]]] | None:
        connection = self._connection()
        with connection.transaction():
            connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
            if connection.execute("SELECT to_regclass('_headrace_views')").fetchone() == (None,):
                return None
            found = connection.execute(
                "SELECT batch, shape, name FROM _headrace_views WHERE view = %s AND part = 'serving'", [view]
            ).fetchone()
            if found is None:
                return None
            batch, shape, name = found
            shape = shape if isinstance(shape, dict) else json.loads(shape)
            key = ", ".join(shape["key"])
            return batch, connection.execute(f'SELECT * FROM "{name}" ORDER BY {key}').fetchall()

    def _connection(self) -> psycopg.Connection[Any]:
        """One per thread: a look is quick, and a connection is not."""
        if not hasattr(self._connections, "one"):
            self._connections.one = psycopg.connect(self.url, autocommit=True)
        found: psycopg.Connection[Any] = self._connections.one
        return found

    def opener(self) -> str:
        return f"headrace.views.postgres.store:PostgresStore({self.url!r}, 'public', 'sales')"

    def close(self) -> None:
        if hasattr(self._connections, "one"):
            self._connections.one.close()
        self.server.drop(self.database)
