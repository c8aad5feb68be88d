"""A broker for the command to talk to: the embedded one for most tests, Apache Kafka as well for some."""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from tests.cli.runner import Headrace
from tests.support.apache_kafka import start_kafka
from tests.support.embedded import start_headrace
from tests.support.server import Server

_counter = itertools.count()


@pytest.fixture(scope="session")
def embedded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    # Retention and compaction of time are looked at often, so that a test need not wait for them.
    archive = tmp_path_factory.mktemp("archive")
    options = ("--set", "log.cleaner.backoff.ms=100", "--set", f"headrace.archive.dir={archive}")
    server = start_headrace(tmp_path_factory.mktemp("cli") / "headrace", options)
    yield server
    assert server.stop() == 0, server.log.read_text()[-4000:]


@pytest.fixture(scope="session", autouse=True)
def kafka_starting(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Future[Server] | None]:
    """Kafka takes seconds to start, so it does that in the background while other tests run."""
    chosen = {
        item.callspec.params.get("cluster") for item in request.session.items if hasattr(item, "callspec")
    }
    wanted = any("tests/cli" in item.nodeid for item in request.session.items) and "kafka" in chosen
    if not wanted:
        yield None
        return
    with ThreadPoolExecutor(1) as pool:
        starting = pool.submit(start_kafka, tmp_path_factory.mktemp("cli-kafka"))
        yield starting
        starting.result().kill()


@pytest.fixture(scope="session", params=["headrace", "kafka"])
def cluster(request: pytest.FixtureRequest) -> Server:
    if request.param == "headrace":
        server = request.getfixturevalue("embedded")
    else:
        server = request.getfixturevalue("kafka_starting").result()
    assert isinstance(server, Server)
    return server


@pytest.fixture
def headrace(embedded: Server) -> Headrace:
    return Headrace(embedded.bootstrap)


@pytest.fixture
def either(cluster: Server) -> Headrace:
    """The same test against both servers."""
    return Headrace(cluster.bootstrap)


@pytest.fixture
def fresh() -> Callable[..., str]:
    """Names for topics and groups that no other test uses."""
    return lambda what="topic": f"{what}-{next(_counter)}-{uuid.uuid4().hex[:6]}"
