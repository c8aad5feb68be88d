"""The two servers, the clients, and names that no other test uses."""

from __future__ import annotations

import itertools
import re
import uuid
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pytest

from faults.clients import Client
from faults.clients.aio import AiokafkaClient
from faults.clients.java import JavaClient
from faults.clients.java_driver import JavaDriver
from faults.clients.kafka_python import KafkaPythonClient
from faults.clients.librdkafka import LibrdkafkaClient
from faults.servers.headrace_broker import start_headrace
from faults.servers.server import Server
from faults.servers.spark import start_spark, stop_spark
from tests.support.raw import Raw, raw_connection

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CLIENTS: dict[str, type[Client]] = {
    client.name: client for client in (LibrdkafkaClient, KafkaPythonClient, AiokafkaClient, JavaClient)
}
_counter = itertools.count()
_COMPACT_OFTEN = ("--set", "log.cleaner.backoff.ms=250")


@pytest.fixture(scope="session")
def headrace_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = start_headrace(tmp_path_factory.mktemp("wire"), _COMPACT_OFTEN)
    yield server
    assert server.stop() == 0, server.log.read_text()[-4000:]


@pytest.fixture(scope="session", params=["headrace", pytest.param("kafka", marks=pytest.mark.kafka_half)])
def cluster(request: pytest.FixtureRequest) -> Server:
    server = request.getfixturevalue(f"{request.param}_server")
    assert isinstance(server, Server)
    return server


@pytest.fixture(scope="session")
def clients(driver: JavaDriver) -> Iterator[dict[str, Client]]:
    opened = {name: JavaClient(driver) if kind is JavaClient else kind() for name, kind in CLIENTS.items()}
    yield opened
    for client in opened.values():
        client.close()


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    session = start_spark(tmp_path_factory.mktemp("wire-spark"))
    yield session
    stop_spark(session)


@pytest.fixture(params=list(CLIENTS))
def client(request: pytest.FixtureRequest, clients: dict[str, Client]) -> Client:
    return clients[request.param]


@pytest.fixture
def librdkafka(clients: dict[str, Client]) -> Client:
    """The client for those parts of a scenario that do not depend on the client."""
    return clients["librdkafka"]


@pytest.fixture
def raw(driver: JavaDriver, cluster: Server) -> Iterator[Raw]:
    with raw_connection(driver, cluster.port) as connection:
        yield connection


@pytest.fixture
def fresh(request: pytest.FixtureRequest) -> Callable[[str], str]:
    """Return names for topics and groups that no other test uses on either server."""
    stem = re.sub(r"[^a-z]+", "-", request.node.originalname.removeprefix("test_"))[:40].strip("-")

    def name(what: str = "t") -> str:
        return f"{stem}-{next(_counter)}-{uuid.uuid4().hex[:6]}.{what}"

    return name
