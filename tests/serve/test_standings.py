"""Where the views stand: rows, position beside the end of the topic, the last proof; and a server without SQL."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace.app import App
from headrace.client.cluster import Cluster
from headrace.client.declaring import ensure_declared
from headrace.ops.verify import verify_view
from headrace.settings import Settings
from tests.serve.http import Http
from tests.serve.serving import served
from tests.serve.shop import shop
from tests.support.waiting import until
from tests.views.seeing import following

COUNT = 7


@pytest.fixture(scope="module")
def app(cluster: Cluster) -> App:
    made = shop("standing")
    for topic in made.topics:
        ensure_declared(cluster, topic, topic.name, 2)
    return made


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("standing")


@pytest.fixture(scope="module")
def http(app: App, cluster: Cluster, home: Path) -> Iterator[Http]:
    with served(app, cluster, home) as found:
        yield found


def _told(http: Http, view: str) -> Any:
    (found,) = [one for one in http.get("/v1/standings").expect(200)["views"] if one["view"] == view]
    return found


def _sum(told: Any, name: str) -> int:
    return sum(one[name] for one in told["partitions"])


def _put(http: Http, app: App, first: int) -> None:
    values = [{"product_id": f"p{n}", "name": "n", "price": n} for n in range(first, first + COUNT)]
    body = {"records": [{"value": one} for one in values]}
    http.post(f"/v1/topics/{app.topics[0].name}/records", body).expect(200)


def test_a_view_is_told_with_its_rows_its_place_beside_the_end_and_its_last_proof(
    http: Http, app: App, cluster: Cluster, home: Path
) -> None:
    view = app.views[0]
    before = _told(http, view.name)
    assert (before["state"], before["rows"], before["position"]) == ("not serving", None, None)
    assert "headrace run" in before["why"]

    _put(http, app, 0)
    with following(cluster, view, [], home):
        until(lambda: _told(http, view.name)["rows"] == COUNT, "the rows to be counted")
        until(lambda: _sum(_told(http, view.name), "end") == COUNT, "the end to be looked at")
        told = _told(http, view.name)
    assert (told["state"], told["store"], told["dead"], told["verified"]) == ("serving", "sqlite", 0, None)
    assert _sum(told, "at") == COUNT
    assert _sum(told, "behind") == 0

    # Nobody follows any more: the end goes on, the view stays.
    _put(http, app, COUNT)
    until(lambda: _told(http, view.name)["behind_records"] == COUNT, "the lag")
    late = _told(http, view.name)
    assert (late["rows"], _sum(late, "at")) == (COUNT, COUNT)
    assert _sum(late, "end") == 2 * COUNT

    report = verify_view(None, cluster, app, view, Settings(data=home), [], {})
    until(lambda: _told(http, view.name)["verified"] is not None, "the proof to be told")
    proof = _told(http, view.name)["verified"]
    assert (proof["verdict"], proof["line"]) == ("proven", report.line())
    assert _told(http, app.views[1].name)["verified"] is None


def test_a_server_without_sql_says_so_and_tells_its_views(
    http: Http, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert http.get("/v1/standings").expect(200)["sql"] is True
    monkeypatch.setitem(sys.modules, "duckdb", None)
    told = http.get("/v1/standings").expect(200)
    assert (told["sql"], len(told["views"])) == (False, 2)
    problem = http.post("/v1/sql", {"sql": "SELECT 1"}).expect(501)
    assert problem["code"] == "HR-EXTRA-MISSING"
    assert problem["next"] == "pip install 'headrace[sql]'"
