"""A schema of views on the tests' own server, seen by psycopg."""

from __future__ import annotations

import itertools
import os
import threading
from pathlib import Path
from typing import Any

import psycopg

from headrace.model.store import Postgres
from headrace.model.store import Store as Declared
from headrace.views.postgres.store import PostgresStore
from headrace.views.store import Store
from tests.contract.see import See
from tests.support.postgres import shared_server

__all__ = ["SeePostgres"]

_counter = itertools.count()


class SeePostgres(See):
    """A schema of its own, which is made in a tenth of the time that a database takes."""

    # Tables are made and dropped in milliseconds, where others take less than one.
    histories = 12

    def __init__(self, home: Path) -> None:
        super().__init__(home)
        self.url = shared_server().url("postgres")
        self.schema = f"see_{os.getpid()}_{next(_counter)}"
        self._mine = threading.local()
        self._connections: list[psycopg.Connection[Any]] = []

    def open(self, view: str = "sales") -> Store:
        # Both ways of putting rows in are gone, in turns, however few there are.
        return PostgresStore(self.url, self.schema, view, straight_from=1)

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
            key = ", ".join(shape["key"])
            return batch, connection.execute(f'SELECT * FROM "{name}" ORDER BY {key}').fetchall()

    def _connection(self) -> psycopg.Connection[Any]:
        """One per thread: a look is quick, and a connection is not."""
        if not hasattr(self._mine, "connection"):
            made = psycopg.connect(self.url, autocommit=True, options=f"-csearch_path={self.schema}")
            self._mine.connection = made
            self._connections.append(made)
        found: psycopg.Connection[Any] = self._mine.connection
        return found

    def declared(self) -> Declared:
        return Postgres(self.url, self.schema)

    def opener(self) -> str:
        return f"headrace.views.postgres.store:PostgresStore({self.url!r}, {self.schema!r}, 'sales')"

    def close(self) -> None:
        for connection in self._connections:
            connection.close()
        shared_server().execute(f"DROP SCHEMA IF EXISTS {self.schema} CASCADE")
