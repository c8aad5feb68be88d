"""Views over HTTP: rows, their position, and reads that wait for writes."""

from __future__ import annotations

import json
import urllib.parse
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path

import pytest

from faults.serve.http import Http
from faults.serve.local_server import served
from faults.serve.shop_app import Product, shop
from faults.views.follower_thread import following, produce
from faults.views.scripted_flow import ScriptedFlow
from faults.wait import until
from headrace.app import App
from headrace.client.cluster import Cluster
from headrace.client.declared_topics import ensure_declared
from headrace.client.view_names import switch
from headrace.serve.query.position_token import PositionToken, TopicPosition
from headrace.stores import Search
from tests.serve.shops import Shop, Shops, served_shops
from tests.views.scripted_realtime_flow import ScriptedRealtimeFlow, output_of

Fresh = Callable[[str], str]


@pytest.fixture(scope="module")
def shops(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shops]:
    with served_shops("views", 10, cluster, tmp_path_factory.mktemp("views"), partitions=3) as shops:
        yield shops


@pytest.fixture
def app(shops: Shops) -> Iterator[Shop]:
    used = shops.take()
    with shops.followed(used):
        yield used


@pytest.fixture
def http(shops: Shops) -> Http:
    return shops.http


def _products(http: Http, app: Shop | App, count: int) -> str:
    topic = app.topics[0].name
    records = [
        {"value": {"product_id": f"p{number:03}", "name": f"n{number % 7}", "price": number, "weight": None}}
        for number in range(count)
    ]
    token: str = http.post(f"/v1/topics/{topic}/records", {"records": records}).expect(200)["token"]
    return token


def test_rows_are_read_by_key_range_prefix_filter_and_sort_with_their_position(http: Http, app: Shop) -> None:
    token = _products(http, app, 40)
    view = app.views[0].name
    first = http.get(f"/v1/views/{view}/rows/p007", after=token, wait="20s")
    document = first.expect(200)
    assert document["row"] == {"product_id": "p007", "name": "n0", "price": 7.0, "weight": None}
    assert b'"price":7.000000' in first.body
    position = document["position"]
    assert sum(position["offsets"].values()) == 40
    assert first.headers["headrace-position"] == position["token"]
    assert [row["product_id"] for row in http.rows(view, limit=7)] == [
        f"p{number:03}" for number in range(40)
    ]
    assert [row["product_id"] for row in http.rows(view, from_="p010", to="p013")] == ["p010", "p011", "p012"]
    assert len(http.rows(view, prefix="p03", limit=3)) == 10
    request = {"filter": 'price >= 30 and name = "n3"', "sort": "-price"}
    assert [row["product_id"] for row in http.rows(view, **request)] == ["p038", "p031"]
    gone = http.get(f"/v1/views/{view}/rows/none")
    assert gone.expect(404)["code"] == "HR-SERVE-NOT-THERE"
    assert gone.json["position"]["offsets"] == position["offsets"]
    assert gone.headers["content-type"] == "application/problem+json"
    described = http.get(f"/v1/views/{view}").expect(200)
    assert described["position"]["token"] == position["token"]
    assert described["state"] == "serving"
    until(lambda: http.get(f"/v1/views/{view}").json["behind_records"] == 0, "a new sample of the log")
    assert [column["name"] for column in described["columns"] if column["key"]] == ["product_id"]
    listed = http.get("/v1/views").expect(200)
    assert {view["view"] for view in listed["views"]} > {view.name for view in app.views}


def test_a_key_may_have_any_characters_and_several_fields(http: Http, app: Shop) -> None:
    view, topic = app.views[1].name, app.topics[1].name
    ids = ["a/b", "..", "ä ?#&%2F", 'q"\\', "x" * 300]
    records = [{"value": {"order_id": id_, "product_id": "p/1", "pieces": 1}} for id_ in ids]
    token = http.post(f"/v1/topics/{topic}/records", {"records": records}).expect(200)["token"]
    for id_ in ids:
        key = urllib.parse.quote(json.dumps({"order_id": id_, "product_id": "p/1"}), safe="")
        row = http.get(f"/v1/views/{view}/rows/{key}", after=token, wait="20s").expect(200)["row"]
        assert row["order_id"] == id_
    assert len(http.rows(view, prefix='{"product_id": "p/1"}')) == len(ids)
    assert http.get(f"/v1/views/{view}/rows/p%2F1").expect(400)["code"] == "HR-SERVE-REQUEST"
    assert "product_id, order_id" in http.get(f"/v1/views/{view}/rows/p").expect(400)["next"]


def test_a_read_with_the_token_of_a_write_sees_the_write(http: Http, app: Shop) -> None:
    view, topic = app.views[0].name, app.topics[0].name
    for number in range(10):
        value = {"product_id": "same", "name": "n", "price": number, "weight": 0.5}
        token = http.post(f"/v1/topics/{topic}/records", {"value": value}).expect(200)["token"]
        document = http.get(f"/v1/views/{view}/rows/same", after=token, wait="20s").expect(200)
        assert document["row"]["price"] == number
        # The position of a view is a token too.
        again = http.get(f"/v1/views/{view}/rows", after=document["position"]["token"], wait="20s").expect(
            200
        )
        assert again["rows"][0]["price"] >= number
    deleted = http.post(f"/v1/topics/{topic}/records", {"key": {"product_id": "same"}, "value": None}).expect(
        200
    )
    http.get(f"/v1/views/{view}/rows/same", after=deleted["token"], wait="20s").expect(404)


def test_a_read_that_waits_for_a_late_view_times_out_instead_of_returning_old_rows(
    cluster: Cluster, fresh: Fresh, tmp_path: Path
) -> None:
    app = shop(fresh("late"))
    for declared in app.topics:
        ensure_declared(cluster, declared, declared.name, 3)
    view, topic = app.views[0], app.topics[0].name
    with served(app, cluster, tmp_path) as http:
        assert http.get(f"/v1/views/{view.name}/rows").expect(503)["code"] == "HR-SERVE-NOT-SERVING"
        ready = http.get("/readyz").expect(503)
        assert [view["state"] for view in ready["views"]] == ["not serving"] * 2
        with following(cluster, view, [], tmp_path):
            token = _products(http, app, 3)
            http.get(f"/v1/views/{view.name}/rows", after=token, wait="20s").expect(200)
        # Without a follower the view does not move, and readyz reports it.
        later = http.post(
            f"/v1/topics/{topic}/records", {"value": {"product_id": "z", "name": "z", "price": 1}}
        ).expect(200)["token"]
        late = http.get(f"/v1/views/{view.name}/rows/z", after=later, wait="50ms")
        document = late.expect(504)
        assert document["code"] == "HR-SERVE-LATE"
        assert sum(document["position"]["offsets"].values()) == 3
        assert int(late.headers["retry-after"]) > 0
        # Without a token a read returns the current rows and their position.
        assert len(http.rows(view.name)) == 3
        until(lambda: http.get(f"/v1/views/{view.name}").json["behind_records"] == 1, "the lag to be seen")
        stale = next(entry for entry in http.get("/readyz").json["views"] if entry["view"] == view.name)
        assert stale["behind_seconds"] > 0
        with following(cluster, view, [], tmp_path):
            assert http.get(f"/v1/views/{view.name}/rows/z", after=later, wait="20s").expect(200)["row"]


def test_a_token_of_an_unrelated_or_deleted_topic_is_refused(http: Http, app: Shop, cluster: Cluster) -> None:
    view = app.views[0].name
    orders = http.post(
        f"/v1/topics/{app.topics[1].name}/records",
        {"value": {"order_id": "o", "product_id": "p", "pieces": 1}},
    ).expect(200)["token"]
    assert http.get(f"/v1/views/{view}/rows", after=orders).expect(400)["code"] == "HR-SERVE-AFTER"
    for text in ("", "x", "AAAA", orders[:-3], "a" * 40_000):
        assert http.get(f"/v1/views/{view}/rows", after=text).status in (400, 431)
    http.get(f"/v1/views/{view}/rows", after=_products(http, app, 1), wait="20s").expect(200)
    other = PositionToken.of({app.topics[0].name: TopicPosition("another id", {0: 1})}).encode()
    document = http.get(f"/v1/views/{view}/rows", after=other, wait="5s").expect(409)
    assert document["code"] == "HR-SERVE-AFTER-OUTDATED"


def test_a_current_etag_gets_304_until_the_view_moves(http: Http, app: Shop) -> None:
    view = app.views[0].name
    token = _products(http, app, 5)
    for path in (f"/v1/views/{view}/rows", f"/v1/views/{view}/rows/p001"):
        first = http.get(path, after=token, wait="20s")
        first.expect(200)
        known = {"If-None-Match": first.headers["etag"]}
        same = http.get(path, headers=known)
        assert (same.status, same.body, same.headers["etag"]) == (304, b"", first.headers["etag"])
        assert http.get(path, headers={"If-None-Match": f'W/"x", {first.headers["etag"]}'}).status == 304
        token = _products(http, app, 1)
        assert http.get(path, headers=known, after=token, wait="20s").status == 200


def test_a_page_reports_whether_the_view_moved_and_can_refuse_to_continue(http: Http, app: Shop) -> None:
    view = app.views[0].name
    token = _products(http, app, 6)
    first = http.get(f"/v1/views/{view}/rows", limit=2, after=token, wait="20s").expect(200)
    strict = http.get(f"/v1/views/{view}/rows", limit=2, same="true").expect(200)
    assert http.get(strict["next"]).expect(200)["moved"] is False
    http.get(f"/v1/views/{view}/rows", after=_products(http, app, 1), wait="20s").expect(200)
    second = http.get(first["next"]).expect(200)
    assert second["moved"] is True
    assert [row["product_id"] for row in second["rows"]] == ["p002", "p003"]
    refused = http.get(strict["next"]).expect(409)
    assert (refused["code"], refused["position"]) == ("HR-SERVE-MOVED", second["position"])
    for text in ("x", first["next"].partition("cursor=")[2][:20], "a" * 17_000):
        assert http.get(f"/v1/views/{view}/rows", cursor=text).expect(400)["code"].startswith("HR-SERVE")
    assert http.get(f"/v1/views/{view}/rows?cursor=AAAA&filter=x").expect(400)


def test_an_invalid_filter_is_refused_with_the_position_of_the_error_and_a_hint(
    http: Http, app: Shop
) -> None:
    view = app.views[0].name
    _products(http, app, 1)
    until(lambda: http.get(f"/v1/views/{view}").json["state"] == "serving", "the view")
    for text, message in (
        ("price >", "expected a value"),
        ('price = "x"', "an exact number"),
        ("nothing = 1", "does not exist"),
        ("name like 1", "expected =, !="),
        ("name = 1; DROP TABLE x", "syntax error"),
        ('(name = "a"', "')'"),
        ('name = "a" name', "and, or, or the end"),
        ("not " * 40 + 'name = "a"', "deeper than"),
        ("name startswith 5", "a text in double quotes"),
        ('price startswith "1"', "needs a text column"),
        ('name = "\\ud800"', "surrogate"),
        ("x" * 5_000, "at most 4000"),
    ):
        document = http.get(f"/v1/views/{view}/rows", filter=text).expect(400)
        assert message in document["detail"], document
    assert http.get(f"/v1/views/{view}/rows", sort="nothing").expect(400)["code"] == "HR-SERVE-FILTER"
    assert http.get(f"/v1/views/{view}/rows", match="x").expect(422)["code"] == "HR-VIEW-QUESTION"
    assert http.get(f"/v1/views/{view}/rows", limit=0).expect(400)["code"] == "HR-SERVE-REQUEST"
    assert "this route has the parameters" in http.get(f"/v1/views/{view}/rows", limits=1).expect(400)["next"]
    assert http.get("/v1/views/none/rows").expect(404)["code"] == "HR-SERVE-NOT-THERE"


def test_a_search_store_matches_words(cluster: Cluster, fresh: Fresh, tmp_path: Path) -> None:
    name = fresh("found")
    app = App("shop")
    products = app.table(name, Product, key="product_id")
    view = app.view(f"{name}-view", products, store=Search(fields=["name"]))
    ensure_declared(cluster, products, name, 1)
    produce(
        cluster,
        name,
        [
            products.encode(Product(f"p{number}", text, Decimal(1)))
            for number, text in enumerate(("dark coffee", "tea", "coffee"))
        ],
    )
    with following(cluster, view, [], tmp_path), served(app, cluster, tmp_path) as http:
        until(lambda: len(http.get(f"/v1/views/{view.name}/rows").json.get("rows", [])) == 3, "the rows")
        assert {row["product_id"] for row in http.rows(view.name, match="coffee", limit=1)} == {"p0", "p2"}
        assert [row["product_id"] for row in http.rows(view.name, match="+coffee +dark")] == ["p0"]
        assert http.get(f"/v1/views/{view.name}/rows/p1").expect(200)["row"]["name"] == "tea"


def test_a_name_serves_the_view_that_it_was_switched_to(
    cluster: Cluster, fresh: Fresh, tmp_path: Path
) -> None:
    name = fresh("switched")
    app = App("shop")
    products = app.table(name, Product, key="product_id")
    old, new = app.view(f"{name}-old", products), app.view(f"{name}-new", products, key="name")
    ensure_declared(cluster, products, name, 1)
    switch(cluster, "shop", old.name, new.name, 1)
    with following(cluster, new, [], tmp_path), served(app, cluster, tmp_path) as http:
        token = http.post(
            f"/v1/topics/{name}/records", {"value": {"product_id": "p", "name": "n", "price": 1}}
        ).expect(200)["token"]
        document = http.get(f"/v1/views/{old.name}/rows/n", after=token, wait="20s").expect(200)
        assert (document["view"], document["row"]["product_id"]) == (old.name, "p")
        assert http.get(f"/v1/views/{old.name}").expect(200)["answered_by"] == new.name


# Through flows


def test_a_view_behind_two_flows_covers_a_write_after_both_processed_it(
    cluster: Cluster, fresh: Fresh, tmp_path: Path
) -> None:
    name = fresh("chain")
    first, second = ScriptedFlow(cluster, f"{name}-1"), ScriptedFlow(cluster, f"{name}-2")
    app = App("shop")
    source = first.flow.reads[0]
    ensure_declared(cluster, source, source.name, 3)
    second.flow = app.flow(reads=[first.topic], writes=second.topic, name=second.flow.name)(
        lambda frame: frame
    )
    app.flows.insert(0, first.flow)
    app.topics += [source, first.topic, second.topic]
    app.views += [second.view]

    def row(number: int) -> list[tuple[str, dict[str, object]]]:
        return [("p", {"product": "p", "amount": number, "note": None})]

    first.begin()
    second.begin(inputs=first.output)
    with following(cluster, second.view, app.flows, tmp_path), served(app, cluster, tmp_path) as http:

        def read(token: str, wait: str) -> int:
            return http.get(f"/v1/views/{second.view.name}/rows/p", after=token, wait=wait).status

        for number in range(4):
            written = http.post(
                f"/v1/topics/{source.name}/records",
                {"value": {"product": "p", "amount": number, "note": None}},
            ).expect(200)
            token, (record,) = written["token"], written["records"]
            assert read(token, "100ms") == 504
            first.batch(row(number), consumed=record["offset"] + 1)
            # The first flow has processed the write; the second has not read its output.
            assert read(token, "100ms") == 504
            if number % 2:
                # A batch without rows still commits its input offsets.
                second.batch([], consumed=0)
                assert read(token, "100ms") == 504
            ends = max(cluster.ends(first.output, committed=False).values())
            second.consumed = 0
            second.batch(row(number), consumed=ends)
            assert read(token, "20s") == 200
            document = http.get(f"/v1/views/{second.view.name}/rows/p").expect(200)
            assert document["row"]["amount"] == number
            assert (document["position"]["generation"], document["position"]["batch"]) == (
                1,
                second.batches - 1,
            )
        # A new generation of the second flow derives everything again and serves once it has caught up.
        position = document["position"]["token"]
        second.begin(inputs=first.output)
        second.batch(row(9), consumed=ends)
        until(
            lambda: http.get(f"/v1/views/{second.view.name}").json["position"]["generation"] == 2,
            "generation 2",
            timeout_s=120,
        )
        assert read(token, "20s") == 200
        assert http.get(f"/v1/views/{second.view.name}/rows/p", after=position).expect(409)["code"] == (
            "HR-SERVE-AFTER-OUTDATED"
        )
        derived = http.get(f"/v1/topics/{second.topic.name}/records").expect(200)
        assert derived["position"]["topic"] == second.output


def test_a_view_of_a_real_time_flow_covers_a_write_by_its_rows_or_by_the_progress(
    cluster: Cluster, fresh: Fresh, tmp_path: Path
) -> None:
    flow = ScriptedRealtimeFlow(cluster, fresh("quick"))
    source, view = flow.flow.reads[0].name, flow.view
    names = {output_of((letter, None)): letter for letter in "abcdefgh"}

    def token(end: int) -> str:
        return PositionToken.of({source: TopicPosition(f"id-of-{source}", {0: end})}).encode()

    def row(offset: int, output: int) -> None:
        product = names[output]
        flow.rows([(0, offset, (product, {"product": product, "amount": offset, "note": None}))])

    flow.begin()
    with following(cluster, view, flow.app.flows, tmp_path), served(flow.app, cluster, tmp_path) as http:

        def read(end: int, wait: str) -> int:
            return http.get(f"/v1/views/{view.name}/rows", after=token(end), wait=wait).status

        row(4, 0)
        until(lambda: len(http.get(f"/v1/views/{view.name}/rows").json.get("rows", [])) == 1, "the row")
        # Another row of the same record may still be written to the other partition.
        assert read(5, "100ms") == 504
        row(5, 1)
        assert read(5, "20s") == 200
        assert read(6, "100ms") == 504
        flow.write_progress({0: 7})
        assert read(7, "20s") == 200
