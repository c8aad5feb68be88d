"""A served app with views of plain topics; each test uses its own keys."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from faults.serve.http import Http
from faults.serve.local_server import served
from faults.views.follower_thread import following
from headrace.app import App
from headrace.client.cluster import Cluster
from headrace.client.declared_topics import ensure_declared
from tests.browser.page_apps import open_at
from tests.remote.market import market

__all__ = ["FRUITS", "ORDERS", "delete", "open_section", "put", "views_app", "views_home", "views_http"]

FRUITS, ORDERS = "browsed-fruits-view", "browsed-orders-view"
_WAIT_MS = 120_000
expect.set_options(timeout=_WAIT_MS)


@pytest.fixture(scope="session")
def views_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("views-page")


@pytest.fixture(scope="session")
def views_app(cluster: Cluster) -> App:
    created = market("browsed")
    for topic in created.topics:
        ensure_declared(cluster, topic, topic.name, 2)
    return created


@pytest.fixture(scope="session")
def views_http(views_app: App, cluster: Cluster, views_home: Path) -> Iterator[Http]:
    with contextlib.ExitStack() as stack:
        for view in views_app.views:
            stack.enter_context(following(cluster, view, [], views_home))
        yield stack.enter_context(served(views_app, cluster, views_home))


def open_section(page: Page, http: Http, path: str, wait_for: str) -> None:
    """Open the section at ``path``. Load the page again even if it is already open."""
    page.goto("about:blank")
    open_at(page, http, f"/{path}", wait_for)


def put(http: Http, topic: str, *values: dict[str, Any]) -> str:
    body = {"records": [{"value": value} for value in values]}
    token: str = http.post(f"/v1/topics/{topic}/records", body).expect(200)["token"]
    return token


def delete(http: Http, topic: str, **key: str) -> None:
    http.post(f"/v1/topics/{topic}/records", {"key": key, "value": None}).expect(200)
