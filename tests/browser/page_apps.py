"""Served apps for tests of the page, without running flows, and a fresh browser page."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page

from faults.serve.http import Http
from faults.serve.local_server import served
from faults.serve.shop_app import Order, add_shop
from faults.views.follower_thread import following
from faults.views.scripted_flow import ScriptedFlow
from faults.wait import until
from headrace.app import App
from headrace.client.cluster import Cluster
from headrace.client.declared_topics import ensure_declared

__all__ = ["LARGE_NODES", "large", "open_at", "screen", "small", "small_home"]

LARGE_NODES = 300
_WAIT_MS = 120_000
_TEAMS = ("ads", "billing", "fraud", "mail", "search", "stock")


@pytest.fixture(scope="session")
def small_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("small-page")


@pytest.fixture(scope="session")
def small(cluster: Cluster, small_home: Path) -> Iterator[Http]:
    """An app of two topics, each with a view, and of a flow whose batches the test writes itself."""
    by_hand = ScriptedFlow(cluster, "seen")
    app = by_hand.app
    add_shop(app, "seen")
    for topic in app.topics:
        ensure_declared(cluster, topic, topic.name, 1)
    by_hand.begin()
    with contextlib.ExitStack() as stack:
        for view in app.views:
            if view.name.endswith("-products-view"):
                stack.enter_context(following(cluster, view, [], small_home))
        http = stack.enter_context(served(app, cluster, small_home))
        records = [{"value": {"product_id": f"p{n}", "name": "n", "price": 1}} for n in range(25)]
        http.post("/v1/topics/seen-products/records", {"records": records}).expect(200)
        until(
            lambda: http.get("/v1/app/now").json["nodes"]["topic:seen-products"]["records"] == 25,
            "the records",
        )
        yield http


@pytest.fixture(scope="session")
def large(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Http]:
    """An app with the pipelines of six teams. No flow or view runs."""
    app = App("estate")
    for number in range(LARGE_NODES // 10):
        name = f"{_TEAMS[number % len(_TEAMS)]}-{number:02d}"
        raw = app.topic(f"{name}-raw", Order, key="order_id")
        clean = app.topic(f"{name}-clean", key="order_id")
        total = app.topic(f"{name}-total", key="order_id")
        app.flow(reads=[raw], writes=clean, name=f"{name}-clean")(lambda rows: rows)
        app.flow(reads=[clean], writes=total, name=f"{name}-total")(lambda rows: rows)
        for kind in ("a", "b", "c"):
            app.view(f"{name}-{kind}", clean)
        app.view(f"{name}-total", total)
    with served(app, cluster, tmp_path_factory.mktemp("large-page")) as http:
        yield http


@pytest.fixture
def screen(chromium: Browser) -> Iterator[Page]:
    """A page with empty storage. An error of a script, or a violation of the page's policy, fails the test."""
    context = chromium.new_context(viewport={"width": 1440, "height": 900})
    context.set_default_timeout(_WAIT_MS)
    page = context.new_page()
    faults: list[str] = []
    page.on("pageerror", lambda error: faults.append(str(error)))
    page.on("console", lambda text: "Security Policy" in text.text and faults.append(text.text))
    yield page
    context.close()
    assert faults == [], faults


def open_at(page: Page, http: Http, path: str = "/", wait_for: str = "[data-test=app-name]") -> None:
    page.goto(f"http://127.0.0.1:{http.port}/#{path}")
    page.wait_for_selector(wait_for)
