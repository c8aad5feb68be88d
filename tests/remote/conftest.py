"""One app, followed and served, for all tests of clients: each test writes keys of its own."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, BrowserContext

from headrace.app import App
from headrace.client.cluster import Cluster
from headrace.client.declaring import ensure_declared
from headrace.remote import Remote
from tests.remote.asking import asking
from tests.remote.chromium import browser, site
from tests.remote.cutting import Network
from tests.remote.market import market
from tests.serve.http import Http
from tests.serve.serving import served, token_for
from tests.views.conftest import cluster, fresh, log
from tests.views.seeing import following

__all__ = [
    "app",
    "chromium",
    "cluster",
    "context",
    "fresh",
    "home",
    "log",
    "network",
    "origin",
    "remote",
    "server",
]


@pytest.fixture(scope="session")
def app(cluster: Cluster) -> App:
    made = market("market")
    for topic in made.topics:
        ensure_declared(cluster, topic, topic.name, 3)
    return made


@pytest.fixture(scope="session")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("remote")


@pytest.fixture(scope="session")
def origin(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Of pages, which is not the server's."""
    with site(tmp_path_factory.mktemp("site")) as found:
        yield found


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    """Not longer: as long as it is there, no test can have an event loop of its own."""
    with browser() as found:
        yield found


@pytest.fixture(scope="session")
def server(app: App, cluster: Cluster, home: Path, origin: str) -> Iterator[Http]:
    token = token_for(home, "clerk", "read:view:*", "write:topic:*", "read:topic:*")
    with contextlib.ExitStack() as stack:
        for view in app.views:
            stack.enter_context(following(cluster, view, [], home))
        found = stack.enter_context(served(app, cluster, home, origins=origin))
        found.token = token
        yield found


@pytest.fixture(scope="module")
def context(chromium: Browser) -> Iterator[BrowserContext]:
    """What pages keep is told apart by the port of their network."""
    made = chromium.new_context()
    made.set_default_timeout(60_000)
    yield made
    made.close()


@pytest.fixture
def network(server: Http) -> Iterator[Network]:
    """Between a client and the server."""
    made = Network(server.port)
    yield made
    made.close()


@pytest.fixture
def remote(server: Http) -> Iterator[Remote]:
    with asking(server) as remote:
        yield remote
