"""An app with plain views, followed and served, for tests of the page: each test has keys of its own."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from headrace.app import App
from headrace.client.cluster import Cluster
from headrace.client.declaring import ensure_declared
from tests.browser.screens import open_at
from tests.remote.market import market
from tests.serve.http import Http
from tests.serve.serving import served
from tests.views.seeing import following

__all__ = ["FRUITS", "ORDERS", "delete", "opened", "put", "views_app", "views_home", "views_http"]

FRUITS, ORDERS = "browsed-fruits-view", "browsed-orders-view"
_WAIT_MS = 120_000
expect.set_options(timeout=_WAIT_MS)


@pytest.fixture(scope="session")
def views_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("views-page")


@pytest.fixture(scope="session")
def views_app(cluster: Cluster) -> App:
    made = market("browsed")
    for topic in made.topics:
        ensure_declared(cluster, topic, topic.name, 2)
    return made


@pytest.fixture(scope="session")
def views_http(views_app: App, cluster: Cluster, views_home: Path) -> Iterator[Http]:
    with contextlib.ExitStack() as stack:
        for view in views_app.views:
            stack.enter_context(following(cluster, view, [], views_home))
        yield stack.enter_context(served(views_app, cluster, views_home))


def opened(page: Page, http: Http, place: str, wait_for: str) -> None:
    """``place`` is what stands behind the hash; also where the page is there already, it is loaded anew."""
    page.goto("about:blank")
    open_at(page, http, f"/{place}", wait_for)


def put(http: Http, topic: str, *values: dict[str, Any]) -> str:
    body = {"records": [{"value": one} for one in values]}
    token: str = http.post(f"/v1/topics/{topic}/records", body).expect(200)["token"]
    return token


def delete(http: Http, topic: str, **key: str) -> None:
    http.post(f"/v1/topics/{topic}/records", {"key": key, "value": None}).expect(200)
