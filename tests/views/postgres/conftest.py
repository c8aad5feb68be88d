"""A schema of its own for each test, on the one server of all tests."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

from headrace.views.postgres.store import PostgresStore
from tests.contract.store_hand import Hand
from tests.support.postgres import PostgresServer, shared_server


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
def hand(url: str) -> Iterator[Hand]:
    with contextlib.closing(PostgresStore(url, "public", "sales")) as store:
        yield Hand(store)
