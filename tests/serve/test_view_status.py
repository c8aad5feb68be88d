"""The status of views: rows, position, end of the topic, last proof; and a server without SQL."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from faults.serve.http import Http
from faults.serve.local_server import served
from faults.serve.shop_app import shop
from faults.views.follower_thread import following
from faults.wait import until
from headrace.app import App
from headrace.client.cluster import Cluster
from headrace.client.declared_topics import ensure_declared
from headrace.ops.verify.verifier import verify_view
from headrace.settings import Settings

COUNT = 7


@pytest.fixture(scope="module")
def app(cluster: Cluster) -> App:
    shop_app = shop("view-status")
    for topic in shop_app.topics:
        ensure_declared(cluster, topic, topic.name, 2)
    return shop_app


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("view-status")


@pytest.fixture(scope="module")
def http(app: App, cluster: Cluster, home: Path) -> Iterator[Http]:
    with served(app, cluster, home) as client:
        yield client


def _status(http: Http, view: str) -> Any:
    (status,) = [entry for entry in http.get("/v1/standings").expect(200)["views"] if entry["view"] == view]
    return status


def _sum(document: Any, name: str) -> int:
    return sum(partition[name] for partition in document["partitions"])


def _put(http: Http, app: App, first: int) -> None:
    values = [{"product_id": f"p{n}", "name": "n", "price": n} for n in range(first, first + COUNT)]
    body = {"records": [{"value": value} for value in values]}
    http.post(f"/v1/topics/{app.topics[0].name}/records", body).expect(200)


def test_a_view_has_its_rows_position_log_end_and_last_proof(
    http: Http, app: App, cluster: Cluster, home: Path
) -> None:
    view = app.views[0]
    before = _status(http, view.name)
    assert (before["state"], before["rows"], before["position"]) == ("not serving", None, None)
    assert "headrace run" in before["why"]

    _put(http, app, 0)
    with following(cluster, view, [], home):
        until(lambda: _status(http, view.name)["rows"] == COUNT, "the rows to be counted")
        until(lambda: _sum(_status(http, view.name), "end") == COUNT, "the end of the topic")
        result = _status(http, view.name)
    assert (result["state"], result["store"], result["dead"], result["verified"]) == (
        "serving",
        "sqlite",
        0,
        None,
    )
    assert _sum(result, "at") == COUNT
    assert _sum(result, "behind") == 0

    # Without a follower, the end of the topic advances and the view's position does not.
    _put(http, app, COUNT)
    until(lambda: _status(http, view.name)["behind_records"] == COUNT, "the lag")
    late = _status(http, view.name)
    assert (late["rows"], _sum(late, "at")) == (COUNT, COUNT)
    assert _sum(late, "end") == 2 * COUNT

    report = verify_view(None, cluster, app, view, Settings(data=home), [], {})
    until(lambda: _status(http, view.name)["verified"] is not None, "the proof")
    proof = _status(http, view.name)["verified"]
    assert (proof["verdict"], proof["line"]) == ("proven", report.line())
    assert _status(http, app.views[1].name)["verified"] is None


def test_a_server_without_sql_lists_its_views(http: Http, monkeypatch: pytest.MonkeyPatch) -> None:
    assert http.get("/v1/standings").expect(200)["sql"] is True
    monkeypatch.setitem(sys.modules, "duckdb", None)
    document = http.get("/v1/standings").expect(200)
    assert (document["sql"], len(document["views"])) == (False, 2)
    problem = http.post("/v1/sql", {"sql": "SELECT 1"}).expect(501)
    assert problem["code"] == "HR-EXTRA-MISSING"
    assert problem["next"] == "pip install 'headrace[sql]'"
