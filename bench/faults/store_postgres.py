"""Views in a PostgreSQL database, for faults: one server for all runs of a process, a database for each."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from bench.faults.store_place import Seen, StoreKind, StorePlace
from headrace.views.store import Store

if TYPE_CHECKING:
    import psycopg

    from tests.support.postgres import PostgresServer

__all__ = ["PostgresKind"]


class PostgresKind(StoreKind):
    def product(self) -> type[Any]:
        from headrace.views.postgres.store import PostgresStore

        return PostgresStore

    def fencing(self) -> ModuleType:
        from headrace.views.postgres import store

        return store

    def open(self, product: type[Any], address: str, view: str) -> Store:
        return product(address, "public", view)  # type: ignore[no-any-return]

    @contextlib.contextmanager
    def place(self, home: Path) -> Iterator[StorePlace]:
        from tests.support.postgres import shared_server

        server = shared_server()
        place = PostgresPlace(server, server.database())
        try:
            yield place
        finally:
            server.drop(place.database)


class PostgresPlace(StorePlace):
    def __init__(self, server: PostgresServer, database: str) -> None:
        self._server = server
        self.database = database
        self.address = server.url(database)

    @contextlib.contextmanager
    def watching(self, view: str) -> Iterator[Callable[[], Seen | None]]:
        watch = _Watch(self.address, view)
        try:
            yield watch.look
        finally:
            watch.close()

    def stop(self) -> None:
        self._server.stop()

    def start(self) -> None:
        self._server.start()

    def wipe(self) -> None:
        self._server.drop(self.database)
        self._server.execute(f"CREATE DATABASE {self.database}")

    def keep(self) -> object:
        return self._server.dump(self.database)

    def restore(self, kept: object) -> None:
        assert isinstance(kept, Path)
        self._server.restore(self.database, kept)


class _Watch:
    """One connection, made again when it is gone."""

    def __init__(self, address: str, view: str) -> None:
        self._address = address
        self._view = view
        self._connection: psycopg.Connection[Any] | None = None

    def look(self) -> Seen | None:
        import psycopg

        try:
            if self._connection is None or self._connection.closed:
                self._connection = psycopg.connect(self._address, autocommit=True, connect_timeout=10)
            return self._seen(self._connection)
        except (psycopg.OperationalError, psycopg.errors.UndefinedTable):
            self.close()
            return None

    def _seen(self, connection: psycopg.Connection[Any]) -> Seen | None:
        connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ, READ ONLY")
        found = connection.execute(
            "SELECT generation, batch FROM _headrace_views WHERE view = %s AND part = 'serving'", [self._view]
        ).fetchone()
        rows = connection.execute(f'SELECT * FROM "{self._view}"').fetchall() if found else []
        connection.execute("COMMIT")
        return (*found, {row[0]: row for row in rows}) if found else None

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None
