"""Views on a PostgreSQL server, read with psycopg: a schema per fixture, a database per fault run."""

from __future__ import annotations

import contextlib
import itertools
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import psycopg

from faults.servers.postgres import PostgresServer, shared_server
from faults.stores.port import FaultyStore, Snapshot, StoreFaults, StoreFixture
from headrace.model.store import Postgres
from headrace.model.store import Store as Declared
from headrace.stores.postgres import writer
from headrace.stores.postgres.writer import PostgresWriter
from headrace.stores.writer import StoreWriter

__all__ = ["FAULTS", "FIXTURE", "PostgresFaults", "PostgresFixture"]

_counter = itertools.count()


class PostgresFixture(StoreFixture):
    """A schema for each fixture, because creating a database takes ten times as long."""

    # Creating and dropping a table takes milliseconds; in other stores it takes less than one.
    histories = 8

    def __init__(self, home: Path) -> None:
        super().__init__(home)
        self.url = shared_server().url("postgres")
        self.schema = f"see_{os.getpid()}_{next(_counter)}"
        self._thread_local = threading.local()
        self._connections: list[psycopg.Connection[Any]] = []

    def open(self, view: str = "sales") -> StoreWriter:
        # With 1, the writer alternates between both ways to insert rows, even with few rows.
        return PostgresWriter(self.url, self.schema, view, direct_rows_min=1)

    def read(self, view: str = "sales") -> tuple[int, list[tuple[Any, ...]]] | None:
        try:
            with self._connection().transaction():
                return self._read(self._connection(), view)
        except psycopg.errors.UndefinedTable:
            return None

    def _read(
        self, connection: psycopg.Connection[Any], view: str
    ) -> tuple[int, list[tuple[Any, ...]]] | None:
        connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
        connection.execute(f'LOCK TABLE "{view}" IN ACCESS SHARE MODE')
        row = connection.execute(
            "SELECT batch, shape, name FROM _headrace_views WHERE view = %s AND part = 'serving'", [view]
        ).fetchone()
        if row is None:
            return None
        batch, shape, name = row
        key = ", ".join(shape["key"])
        return batch, connection.execute(f'SELECT * FROM "{name}" ORDER BY {key}').fetchall()

    def _connection(self) -> psycopg.Connection[Any]:
        """Return one connection per thread, because connecting takes longer than reading."""
        if not hasattr(self._thread_local, "connection"):
            connection = psycopg.connect(self.url, autocommit=True, options=f"-csearch_path={self.schema}")
            self._thread_local.connection = connection
            self._connections.append(connection)
        thread_connection: psycopg.Connection[Any] = self._thread_local.connection
        return thread_connection

    def declared(self) -> Declared:
        return Postgres(self.url, self.schema)

    def opener(self) -> str:
        return f"headrace.stores.postgres.writer:PostgresWriter({self.url!r}, {self.schema!r}, 'sales')"

    def close(self) -> None:
        for connection in self._connections:
            connection.close()
        shared_server().execute(f"DROP SCHEMA IF EXISTS {self.schema} CASCADE")


class PostgresFaults(StoreFaults):
    def store_class(self) -> type[Any]:
        return PostgresWriter

    def fencing_module(self) -> ModuleType:
        return writer

    def open(self, store_class: type[Any], address: str, view: str) -> StoreWriter:
        return store_class(address, "public", view)  # type: ignore[no-any-return]

    @contextlib.contextmanager
    def create(self, home: Path) -> Iterator[FaultyStore]:
        server = shared_server()
        database = FaultyPostgres(server, server.database())
        try:
            yield database
        finally:
            server.drop(database.database)


class FaultyPostgres(FaultyStore):
    def __init__(self, server: PostgresServer, database: str) -> None:
        self._server = server
        self.database = database
        self.address = server.url(database)

    @contextlib.contextmanager
    def open_snapshot_reader(self, view: str) -> Iterator[Callable[[], Snapshot | None]]:
        reader = _Reader(self.address, view)
        try:
            yield reader.read
        finally:
            reader.close()

    def stop(self) -> None:
        self._server.stop()

    def start(self) -> None:
        self._server.start()

    def wipe(self) -> None:
        self._server.drop(self.database)
        self._server.execute(f"CREATE DATABASE {self.database}")

    def back_up(self) -> object:
        return self._server.dump(self.database)

    def restore(self, backup: object) -> None:
        assert isinstance(backup, Path)
        self._server.restore(self.database, backup)


class _Reader:
    """One connection, reopened after it was lost."""

    def __init__(self, address: str, view: str) -> None:
        self._address = address
        self._view = view
        self._connection: psycopg.Connection[Any] | None = None

    def read(self) -> Snapshot | None:
        try:
            if self._connection is None or self._connection.closed:
                self._connection = psycopg.connect(self._address, autocommit=True, connect_timeout=10)
            return self._snapshot(self._connection)
        except (psycopg.OperationalError, psycopg.errors.UndefinedTable):
            self.close()
            return None

    def _snapshot(self, connection: psycopg.Connection[Any]) -> Snapshot | None:
        connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ, READ ONLY")
        connection.execute(f'LOCK TABLE "{self._view}" IN ACCESS SHARE MODE')
        position = connection.execute(
            "SELECT generation, batch FROM _headrace_views WHERE view = %s AND part = 'serving'", [self._view]
        ).fetchone()
        rows = connection.execute(f'SELECT * FROM "{self._view}"').fetchall() if position else []
        connection.execute("COMMIT")
        return (*position, {row[0]: row for row in rows}) if position else None

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


FIXTURE = PostgresFixture
FAULTS = PostgresFaults()
