"""One served app for all tests of clients; each test writes its own keys."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

# httpx would import this module at the first request. pytest then rewrites the module's asserts, and Python
# 3.11 fails if another thread parses meanwhile (SystemError: AST constructor recursion depth mismatch).
import anyio._backends._asyncio  # noqa: F401
import pytest
from playwright.sync_api import Browser, BrowserContext, Page

from faults.serve.chromium import browser, open_page, site
from faults.serve.http import Http
from faults.serve.local_server import served, token_for
from faults.views.follower_thread import following
from headrace.app import App
from headrace.client.cluster import Cluster
from headrace.client.declared_topics import ensure_declared
from headrace.remote import Remote
from tests.remote.clients import new_remote
from tests.remote.market import market
from tests.remote.unreliable_network import Network
from tests.views.conftest import cluster, fresh, log

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
    "page",
    "remote",
    "server",
    "topic",
    "view",
]


@pytest.fixture(scope="session")
def app(cluster: Cluster) -> App:
    created = market("market")
    for topic in created.topics:
        ensure_declared(cluster, topic, topic.name, 3)
    return created


@pytest.fixture(scope="session")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("remote")


@pytest.fixture(scope="session")
def origin(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The origin of the test pages, which is not the server's origin."""
    with site(tmp_path_factory.mktemp("site")) as found:
        yield found


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    """One browser per module, because a test with its own event loop cannot run while Playwright's event loop runs."""
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
    """Pages share a context; the port of their network separates their storage."""
    created = chromium.new_context()
    created.set_default_timeout(60_000)
    yield created
    created.close()


@pytest.fixture
def network(server: Http) -> Iterator[Network]:
    """An unreliable network between a client and the server."""
    created = Network(server.port)
    yield created
    created.close()


@pytest.fixture
def remote(server: Http) -> Iterator[Remote]:
    with new_remote(server) as remote:
        yield remote


@pytest.fixture
def topic(app: App) -> str:
    return app.topics[0].name


@pytest.fixture
def view(app: App) -> str:
    return app.views[0].name


@pytest.fixture
def page(context: BrowserContext, origin: str) -> Iterator[Page]:
    yield open_page(context, origin)
    for page in context.pages:
        page.close()
