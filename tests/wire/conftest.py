"""The two servers, the clients, and names that no other test uses.

Servers and JVMs start side by side in the background as soon as a chosen test needs them, since each takes seconds;
a fixture waits for its own only when it is first used. All of them serve the whole session.
"""

from __future__ import annotations

import itertools
import re
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.apache_kafka import start_kafka
from tests.support.clients import Client
from tests.support.clients.aio import AiokafkaClient
from tests.support.clients.java import JavaClient
from tests.support.clients.kafka_python import KafkaPythonClient
from tests.support.clients.librdkafka import LibrdkafkaClient
from tests.support.embedded import start_headrace
from tests.support.java_driver import JavaDriver
from tests.support.raw import Raw, raw_connection
from tests.support.server import Server
from tests.support.spark import start_spark, stop_spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CLIENTS: dict[str, type[Client]] = {
    client.name: client for client in (LibrdkafkaClient, KafkaPythonClient, AiokafkaClient, JavaClient)
}
_counter = itertools.count()
_LOOKS_OFTEN = ("--set", "log.cleaner.backoff.ms=100")


class Starting:
    """Things that start in threads of their own and are collected when they are needed."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.threads = ThreadPoolExecutor(max_workers=4)
        self.started: dict[str, Future[object]] = {}

    def start(self, name: str, make: Callable[[], object]) -> None:
        if name not in self.started:
            self.started[name] = self.threads.submit(make)

    def close(self) -> None:
        """Stop whatever was started, whether or not a test came to use it."""
        self.threads.shutdown()
        for name, future in self.started.items():
            if future.exception() is not None:
                continue
            started = future.result()
            if isinstance(started, JavaDriver):
                started.close()
            elif name == "spark":
                stop_spark(started)  # type: ignore[arg-type]
            elif isinstance(started, Server) and name == "kafka":
                # Nothing of this server outlives the session, so it need not be asked politely.
                started.kill()
            elif isinstance(started, Server):
                assert started.stop() == 0, started.log.read_text()[-4000:]


@pytest.fixture(scope="session")
def starting(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Starting]:
    directory = tmp_path_factory.mktemp("wire")
    starting = Starting(directory)
    wanted = {name for item in request.session.items for name in getattr(item, "fixturenames", ())}
    chosen = {
        item.callspec.params.get("cluster") for item in request.session.items if hasattr(item, "callspec")
    }
    if "kafka" in chosen or "kafka_server" in wanted:
        starting.start("kafka", lambda: start_kafka(directory / "kafka"))
    if "headrace" in chosen or "headrace_server" in wanted:
        starting.start("headrace", lambda: start_headrace(directory / "headrace", _LOOKS_OFTEN))
    if "driver" in wanted or "client" in wanted:
        starting.start("driver", JavaDriver)
    if "spark" in wanted:
        starting.start("spark", lambda: start_spark(directory))
    yield starting
    starting.close()


@pytest.fixture(scope="session")
def kafka_server(starting: Starting) -> Server:
    starting.start("kafka", lambda: start_kafka(starting.directory / "kafka"))
    server = starting.started["kafka"].result()
    assert isinstance(server, Server)
    return server


@pytest.fixture(scope="session")
def headrace_server(starting: Starting) -> Server:
    starting.start("headrace", lambda: start_headrace(starting.directory / "headrace", _LOOKS_OFTEN))
    server = starting.started["headrace"].result()
    assert isinstance(server, Server)
    return server


@pytest.fixture(scope="session", params=["headrace", pytest.param("kafka", marks=pytest.mark.kafka_half)])
def cluster(request: pytest.FixtureRequest) -> Server:
    server = request.getfixturevalue(f"{request.param}_server")
    assert isinstance(server, Server)
    return server


@pytest.fixture(scope="session")
def driver(starting: Starting) -> JavaDriver:
    starting.start("driver", JavaDriver)
    driver = starting.started["driver"].result()
    assert isinstance(driver, JavaDriver)
    return driver


@pytest.fixture(scope="session")
def clients(driver: JavaDriver) -> Iterator[dict[str, Client]]:
    opened = {name: JavaClient(driver) if kind is JavaClient else kind() for name, kind in CLIENTS.items()}
    yield opened
    for client in opened.values():
        client.close()


@pytest.fixture(scope="session")
def spark(starting: Starting) -> SparkSession:
    starting.start("spark", lambda: start_spark(starting.directory))
    session: SparkSession = starting.started["spark"].result()  # type: ignore[assignment]
    return session


@pytest.fixture(params=list(CLIENTS))
def client(request: pytest.FixtureRequest, clients: dict[str, Client]) -> Client:
    return clients[request.param]


@pytest.fixture
def librdkafka(clients: dict[str, Client]) -> Client:
    """For the side of a scenario that could be any client."""
    return clients["librdkafka"]


@pytest.fixture
def raw(driver: JavaDriver, cluster: Server) -> Iterator[Raw]:
    with raw_connection(driver, cluster.port) as connection:
        yield connection


@pytest.fixture
def fresh(request: pytest.FixtureRequest) -> Callable[[str], str]:
    """Names for topics and groups that no other test, on either server, has used."""
    stem = re.sub(r"[^a-z]+", "-", request.node.originalname.removeprefix("test_"))[:40].strip("-")

    def name(what: str = "t") -> str:
        return f"{stem}-{next(_counter)}-{uuid.uuid4().hex[:6]}.{what}"

    return name
