"""Each test has its own database, on one PostgreSQL server that all tests share."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

from faults.servers.postgres import PostgresServer, shared_server
from headrace.stores.postgres.writer import PostgresWriter
from tests.contract.store_driver import StoreDriver


@pytest.fixture(scope="module")
def server() -> PostgresServer:
    return shared_server()


@pytest.fixture
def database(server: PostgresServer) -> Iterator[str]:
    name = server.database()
    yield name
    server.drop(name)


@pytest.fixture
def url(server: PostgresServer, database: str) -> str:
    return server.url(database)


@pytest.fixture
def driver(url: str) -> Iterator[StoreDriver]:
    with contextlib.closing(PostgresWriter(url, "public", "sales")) as store:
        yield StoreDriver(store)
