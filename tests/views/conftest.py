"""A log for followers, and names that no other test uses."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import pytest

from faults.servers.headrace_broker import start_headrace
from faults.servers.server import Server
from headrace.client.cluster import Cluster

_counter = itertools.count()


@pytest.fixture(scope="session")
def log(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Compaction checks often, so that tests need not wait for it."""
    options = ("--set", "log.cleaner.backoff.ms=250", "--set", "log.retention.check.interval.ms=250")
    server = start_headrace(tmp_path_factory.mktemp("views") / "headrace", options)
    yield server
    assert server.stop() == 0, server.log.read_text()[-4000:]


@pytest.fixture(scope="session")
def cluster(log: Server) -> Cluster:
    return Cluster(log.bootstrap, timeout_s=5.0)


@pytest.fixture
def fresh() -> Callable[[str], str]:
    return lambda what="sales": f"{what}-{next(_counter)}"
