"""Where a view's work is done: all rows kept, answers kept, or all of it on read; at one position, the same rows."""

from __future__ import annotations

import contextlib
import json
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from headrace.app import App
from headrace.client.cluster import Cluster
from headrace.client.declaring import ensure_declared
from headrace.model.errors import AppError, AppMistakes
from headrace.model.graph import check
from headrace.model.view import View
from headrace.serve.answers import Answers
from headrace.serve.route import Answer
from headrace.stores import OnRead
from tests.serve.http import Http
from tests.serve.serving import served
from tests.serve.shop import Product
from tests.views.seeing import following, produce

Fresh = Callable[[str], str]
_ROUNDS = 6


@dataclass(frozen=True)
class _Shop:
    http: Http
    topic: str
    kept: View
    cached: View
    on_read: View
    both: View
    """On read, and its answers are kept."""

    def write(self, *records: dict[str, Any]) -> str:
        path = f"/v1/topics/{self.topic}/records"
        token: str = self.http.post(path, {"records": [*records]}).expect(200)["token"]
        return token

    def rows(self, view: View, **asked: Any) -> Any:
        return self.http.get(f"/v1/views/{view.name}/rows", **asked).expect(200)

    def given(self, view: View) -> int:
        wanted = f'headrace_served_view_answers_given_total{{app="shop",view="{view.name}"}} '
        page = self.http.get("/metrics").body.decode()
        return int(next(line for line in page.splitlines() if line.startswith(wanted)).split()[-1])


@contextlib.contextmanager
def _opened(cluster: Cluster, name: str, kind: str, home: Path) -> Iterator[_Shop]:
    app = App("shop")
    declare = app.table if kind == "table" else app.topic
    topic = declare(name, Product, key="product_id")
    ensure_declared(cluster, topic, name, 2)
    kept = app.view(f"{name}-kept", topic)
    cached = app.view(f"{name}-cached", topic, cached=5)
    on_read = app.view(f"{name}-on-read", topic, store=OnRead(records_max=400))
    both = app.view(f"{name}-both", topic, store=OnRead(records_max=400), cached=5)
    check(app)
    assert app.views == [kept, cached]
    with contextlib.ExitStack() as stack:
        for view in app.views:
            stack.enter_context(following(cluster, view, [], home))
        yield _Shop(stack.enter_context(served(app, cluster, home)), name, kept, cached, on_read, both)


@pytest.fixture(scope="module", params=["table", "events"])
def shop(
    cluster: Cluster, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[_Shop]:
    with _opened(cluster, f"where-{request.param}", request.param, tmp_path_factory.mktemp("where")) as made:
        yield made


def _product(number: int, price: int) -> dict[str, Any]:
    return {"value": {"product_id": f"p{number:02}", "name": f"n{price % 3}", "price": price, "weight": None}}


def test_wherever_the_work_is_done_the_answer_is_the_same(shop: _Shop) -> None:
    rng = random.Random(7)
    deletes = "delete" if shop.http.get(f"/v1/topics/{shop.topic}").json["kind"] == "table" else ""
    questions: list[dict[str, Any]] = [
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
        asked = questions[number % len(questions)]
        for _ in range(2):
            told = [
                shop.rows(view, **asked, after=token, wait="20s")
                for view in (shop.kept, shop.cached, shop.on_read, shop.both)
            ]
            assert [one["rows"] for one in told] == [told[0]["rows"]] * 4, asked
            assert all(one["position"]["offsets"] == told[0]["position"]["offsets"] for one in told[1:2])
            assert all("next" in one for one in told) or not any("next" in one for one in told)
        key = f"p{rng.randrange(15):02}"
        found = [
            shop.http.get(f"/v1/views/{view.name}/rows/{key}", after=token, wait="20s")
            for view in (shop.kept, shop.cached, shop.on_read, shop.both)
        ]
        assert {one.status for one in found} in ({200}, {404})
        assert len({json.dumps(one.json.get("row")) for one in found}) == 1
    # Each question came twice at one position.
    for view in (shop.cached, shop.both):
        assert shop.given(view) >= _ROUNDS


def test_an_answer_that_is_kept_is_given_until_the_view_moves_and_waits_as_any_other(shop: _Shop) -> None:
    given = shop.given(shop.cached)
    token = shop.write(_product(0, 1))
    first = shop.http.get(f"/v1/views/{shop.cached.name}/rows", after=token, wait="20s")
    again = shop.http.get(f"/v1/views/{shop.cached.name}/rows")
    assert (again.body, again.headers["etag"]) == (first.body, first.headers["etag"])
    assert shop.given(shop.cached) == given + 1
    known = {"If-None-Match": again.headers["etag"]}
    assert shop.http.get(f"/v1/views/{shop.cached.name}/rows", headers=known).status == 304
    later = shop.rows(shop.cached, after=shop.write(_product(0, 2)), wait="20s")
    assert later["rows"][0]["price"] == 2
    late = shop.http.get(f"/v1/views/{shop.cached.name}/rows", after=later["position"]["token"])
    assert late.json["rows"] == later["rows"]
    assert shop.given(shop.cached) == given + 2


def test_what_is_computed_on_read_is_bounded_and_says_what_it_cannot(
    cluster: Cluster, fresh: Fresh, tmp_path: Path
) -> None:
    with _opened(cluster, fresh("bounded"), "table", tmp_path) as shop:
        described = shop.http.get(f"/v1/views/{shop.on_read.name}").expect(200)
        assert (described["store"], described["state"]) == ("onread", "serving")
        listed = [one["view"] for one in shop.http.get("/v1/views").expect(200)["views"]]
        assert shop.on_read.name in listed
        # Values that do not fit are left out, and nothing is written for it.
        produce(cluster, shop.topic, [(b"x", b"not JSON"), (b"y", b"{}")])
        shop.write(_product(1, 1))
        told = shop.rows(shop.on_read)
        assert [one["product_id"] for one in told["rows"]] == ["p01"]
        assert cluster.topic(shop.on_read.dead_topic) is None
        words = shop.http.get(f"/v1/views/{shop.on_read.name}/rows", match="pear").expect(422)
        assert "full-text" in words["detail"]
        told = shop.http.post("/v1/sql", {"sql": f'SELECT * FROM "{shop.on_read.name}"'}).expect(422)
        assert "computed on read" in told["detail"]
        shop.write(*(_product(number, 1) for number in range(400)))
        refused = shop.http.get(f"/v1/views/{shop.on_read.name}/rows").expect(422)
        assert "400 records" in refused["detail"]
        assert "a store" in refused["next"]


def test_only_what_no_flow_writes_is_computed_on_read() -> None:
    app = App("shop")
    source = app.topic("source", Product, key="product_id")
    derived = app.topic("derived", Product, key="product_id")
    flow = app.flow(reads=[source], writes=derived, name="derive")(lambda source: source)
    app.view("derived", flow.writes, store=OnRead())
    app.view("none", source, store=OnRead(records_max=0))
    with pytest.raises(AppMistakes) as told:
        check(app)
    assert "is written by flow" in str(told.value)
    assert "cannot be computed from 0 records" in str(told.value)
    with pytest.raises(AppError, match="cached must be"):
        app.view("wrong", source, cached=-1)
    app.computed.clear()
    app.view("twice", source)
    app.view("twice", source, store=OnRead())
    with pytest.raises(AppMistakes, match="twice"):
        check(app)


def test_answers_that_were_asked_for_least_recently_make_room_by_number_and_by_bytes() -> None:
    app = App("shop")
    topic = app.topic("source", Product, key="product_id")
    views = [app.view("one", topic, cached=3), app.view("two", topic, cached=100), app.view("none", topic)]
    answers = Answers(views, 2_000)
    for number in range(5):
        answers.keep("one", f"q{number}", "at", Answer(b"x"))
        assert answers.find("one", "q0", "at") is not None or number >= 3
    assert [answers.find("one", f"q{number}", "at") is not None for number in range(5)] == [
        *(True, False, False, True, True)
    ]
    assert answers.find("one", "q4", "elsewhere") is None
    for number in range(10):
        answers.keep("two", f"q{number}", "at", Answer(b"x" * 300))
    assert answers.counts()["two"][:2] == (3, 3 * 302)
    answers.keep("two", "q9", "later", Answer(b"y" * 300))
    assert answers.counts()["two"][:2] == (3, 3 * 302)
    answers.keep("two", "large", "at", Answer(b"x" * 1_001))
    assert answers.find("two", "large", "at") is None
    answers.keep("none", "q", "at", Answer(b""))
    assert answers.find("none", "q", "at") is None
