"""Brokers for the commands: the embedded one for most tests, and also Apache Kafka for some."""

from __future__ import annotations

import contextlib
import itertools
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from faults.servers.headrace_broker import start_headrace
from faults.servers.server import Server
from tests.cli.runner import Headrace
from tests.cli.systemd import Systemd

_counter = itertools.count()


@pytest.fixture(scope="session")
def embedded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    # Retention and compaction run often, so that no test waits for them.
    archive = tmp_path_factory.mktemp("archive")
    options = ("--set", "log.cleaner.backoff.ms=250", "--set", f"headrace.archive.dir={archive}")
    server = start_headrace(tmp_path_factory.mktemp("cli") / "headrace", options)
    yield server
    assert server.stop() == 0, server.log.read_text()[-4000:]


@pytest.fixture(scope="session", params=["headrace", "kafka"])
def cluster(request: pytest.FixtureRequest) -> Server:
    server = request.getfixturevalue("embedded" if request.param == "headrace" else "kafka_server")
    assert isinstance(server, Server)
    return server


@pytest.fixture
def headrace(embedded: Server) -> Headrace:
    return Headrace(embedded.bootstrap)


@pytest.fixture
def any_server(cluster: Server) -> Headrace:
    """The command with the address of the embedded broker, and in a second run with that of Apache Kafka."""
    return Headrace(cluster.bootstrap)


@pytest.fixture
def fresh() -> Callable[..., str]:
    """Return names for topics and groups that no other test uses."""
    return lambda what="topic": f"{what}-{next(_counter)}-{uuid.uuid4().hex[:6]}"


@pytest.fixture
def systemd(tmp_path: Path) -> Iterator[Systemd]:
    with contextlib.closing(Systemd(tmp_path / "notify")) as receiver:
        yield receiver
