"""Stored, cached and on-read views return the same rows at one position."""

from __future__ import annotations

import contextlib
import json
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from faults.serve.http import Http
from faults.serve.local_server import served
from faults.serve.shop_app import Product
from faults.views.follower_thread import following, produce
from headrace.app import App
from headrace.client.cluster import Cluster
from headrace.client.declared_topics import ensure_declared
from headrace.model.declarations import View
from headrace.model.errors import AppError, AppMistakes
from headrace.model.graph import check
from headrace.serve.http.route import Response
from headrace.serve.query.view_queries import ResponseCache
from headrace.stores import OnRead

Fresh = Callable[[str], str]
_ROUNDS = 6


@dataclass(frozen=True)
class _Shop:
    http: Http
    topic: str
    stored: View
    cached: View
    on_read: View
    both: View
    """A view that is computed on read and has a response cache."""

    def write(self, *records: dict[str, Any]) -> str:
        path = f"/v1/topics/{self.topic}/records"
        token: str = self.http.post(path, {"records": [*records]}).expect(200)["token"]
        return token

    def rows(self, view: View, **request: Any) -> Any:
        return self.http.get(f"/v1/views/{view.name}/rows", **request).expect(200)

    def cached_responses(self, view: View) -> int:
        metric = f'headrace_served_view_answers_given_total{{app="shop",view="{view.name}"}} '
        page = self.http.get("/metrics").body.decode()
        return int(next(line for line in page.splitlines() if line.startswith(metric)).split()[-1])


@contextlib.contextmanager
def _open_shop(cluster: Cluster, name: str, kind: str, home: Path) -> Iterator[_Shop]:
    app = App("shop")
    declare = app.table if kind == "table" else app.topic
    topic = declare(name, Product, key="product_id")
    ensure_declared(cluster, topic, name, 2)
    stored = app.view(f"{name}-stored", topic)
    cached = app.view(f"{name}-cached", topic, cached=5)
    on_read = app.view(f"{name}-on-read", topic, store=OnRead(records_max=400))
    both = app.view(f"{name}-both", topic, store=OnRead(records_max=400), cached=5)
    check(app)
    assert app.views == [stored, cached]
    with contextlib.ExitStack() as stack:
        for view in app.views:
            stack.enter_context(following(cluster, view, [], home))
        yield _Shop(stack.enter_context(served(app, cluster, home)), name, stored, cached, on_read, both)


@pytest.fixture(scope="module", params=["table", "events"])
def shop(
    cluster: Cluster, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[_Shop]:
    with _open_shop(
        cluster, f"where-{request.param}", request.param, tmp_path_factory.mktemp("where")
    ) as opened:
        yield opened


def _product(number: int, price: int) -> dict[str, Any]:
    return {"value": {"product_id": f"p{number:02}", "name": f"n{price % 3}", "price": price, "weight": None}}


def test_stored_cached_and_on_read_views_return_the_same_rows(shop: _Shop) -> None:
    rng = random.Random(7)
    deletes = "delete" if shop.http.get(f"/v1/topics/{shop.topic}").json["kind"] == "table" else ""
    queries: list[dict[str, Any]] = [
        {},
        {"filter": 'name = "n1"', "sort": "-price"},
        {"prefix": "p0", "limit": 3},
        {"from_": "p05", "to": "p12"},
    ]
    for number in range(_ROUNDS):
        changes = [_product(rng.randrange(15), rng.randrange(50)) for _ in range(rng.randrange(1, 4))]
        if deletes and rng.random() < 0.5:
            changes.append({"key": {"product_id": f"p{rng.randrange(15):02}"}, "value": None})
        token = shop.write(*changes)
        request = queries[number % len(queries)]
        for _ in range(2):
            results = [
                shop.rows(view, **request, after=token, wait="20s")
                for view in (shop.stored, shop.cached, shop.on_read, shop.both)
            ]
            assert [entry["rows"] for entry in results] == [results[0]["rows"]] * 4, request
            assert all(
                entry["position"]["offsets"] == results[0]["position"]["offsets"] for entry in results[1:2]
            )
            assert all("next" in entry for entry in results) or not any("next" in entry for entry in results)
        key = f"p{rng.randrange(15):02}"
        replies = [
            shop.http.get(f"/v1/views/{view.name}/rows/{key}", after=token, wait="20s")
            for view in (shop.stored, shop.cached, shop.on_read, shop.both)
        ]
        assert {entry.status for entry in replies} in ({200}, {404})
        assert len({json.dumps(entry.json.get("row")) for entry in replies}) == 1
    # Each query was sent twice at one position.
    for view in (shop.cached, shop.both):
        assert shop.cached_responses(view) >= _ROUNDS


def test_a_cached_response_is_used_until_the_view_moves_and_waits_for_tokens(shop: _Shop) -> None:
    cached_before = shop.cached_responses(shop.cached)
    token = shop.write(_product(0, 1))
    first = shop.http.get(f"/v1/views/{shop.cached.name}/rows", after=token, wait="20s")
    second = shop.http.get(f"/v1/views/{shop.cached.name}/rows")
    assert (second.body, second.headers["etag"]) == (first.body, first.headers["etag"])
    assert shop.cached_responses(shop.cached) == cached_before + 1
    known = {"If-None-Match": second.headers["etag"]}
    assert shop.http.get(f"/v1/views/{shop.cached.name}/rows", headers=known).status == 304
    later = shop.rows(shop.cached, after=shop.write(_product(0, 2)), wait="20s")
    assert later["rows"][0]["price"] == 2
    late = shop.http.get(f"/v1/views/{shop.cached.name}/rows", after=later["position"]["token"])
    assert late.json["rows"] == later["rows"]
    assert shop.cached_responses(shop.cached) == cached_before + 2


def test_on_read_views_are_bounded_and_refuse_what_they_cannot_do(
    cluster: Cluster, fresh: Fresh, tmp_path: Path
) -> None:
    with _open_shop(cluster, fresh("bounded"), "table", tmp_path) as shop:
        described = shop.http.get(f"/v1/views/{shop.on_read.name}").expect(200)
        assert (described["store"], described["state"]) == ("onread", "serving")
        listed = [view["view"] for view in shop.http.get("/v1/views").expect(200)["views"]]
        assert shop.on_read.name in listed
        # Invalid values are skipped, and no dead letter is written.
        produce(cluster, shop.topic, [(b"x", b"not JSON"), (b"y", b"{}")])
        shop.write(_product(1, 1))
        result = shop.rows(shop.on_read)
        assert [row["product_id"] for row in result["rows"]] == ["p01"]
        assert cluster.topic(shop.on_read.dead_topic) is None
        words = shop.http.get(f"/v1/views/{shop.on_read.name}/rows", match="pear").expect(422)
        assert "full-text" in words["detail"]
        result = shop.http.post("/v1/sql", {"sql": f'SELECT * FROM "{shop.on_read.name}"'}).expect(422)
        assert "computed on read" in result["detail"]
        shop.write(*(_product(number, 1) for number in range(400)))
        refused = shop.http.get(f"/v1/views/{shop.on_read.name}/rows").expect(422)
        assert "400 records" in refused["detail"]
        assert "a store" in refused["next"]


def test_only_views_of_plain_topics_are_computed_on_read() -> None:
    app = App("shop")
    source = app.topic("source", Product, key="product_id")
    derived = app.topic("derived", Product, key="product_id")
    flow = app.flow(reads=[source], writes=derived, name="derive")(lambda source: source)
    app.view("derived", flow.writes, store=OnRead())
    app.view("none", source, store=OnRead(records_max=0))
    with pytest.raises(AppMistakes) as raised:
        check(app)
    assert "is written by flow" in str(raised.value)
    assert "cannot be computed from 0 records" in str(raised.value)
    with pytest.raises(AppError, match="cached must be"):
        app.view("wrong", source, cached=-1)
    app.computed.clear()
    app.view("twice", source)
    app.view("twice", source, store=OnRead())
    with pytest.raises(AppMistakes, match="twice"):
        check(app)


def test_the_response_cache_evicts_the_least_recently_used_by_number_and_bytes() -> None:
    app = App("shop")
    topic = app.topic("source", Product, key="product_id")
    views = [app.view("one", topic, cached=3), app.view("two", topic, cached=100), app.view("none", topic)]
    answers = ResponseCache(views, 2_000)
    for number in range(5):
        answers.put("one", f"q{number}", "at", Response(b"x"))
        assert answers.get("one", "q0", "at") is not None or number >= 3
    assert [answers.get("one", f"q{number}", "at") is not None for number in range(5)] == [
        *(True, False, False, True, True)
    ]
    assert answers.get("one", "q4", "elsewhere") is None
    for number in range(10):
        answers.put("two", f"q{number}", "at", Response(b"x" * 300))
    assert answers.counts()["two"][:2] == (3, 3 * 302)
    answers.put("two", "q9", "later", Response(b"y" * 300))
    assert answers.counts()["two"][:2] == (3, 3 * 302)
    answers.put("two", "large", "at", Response(b"x" * 1_001))
    assert answers.get("two", "large", "at") is None
    answers.put("none", "q", "at", Response(b""))
    assert answers.get("none", "q", "at") is None
