"""Proofs over HTTP, by a server without a run."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Callable
from dataclasses import make_dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

from faults.serve.derived_app import app as derived_app
from faults.serve.http import Http
from faults.serve.local_server import served
from faults.serve.shop_app import shop
from faults.views.follower_thread import following, produce
from faults.wait import until
from headrace.app import App
from headrace.client.cluster import Cluster
from headrace.client.declared_topics import ensure_declared


def _verify(http: Http, view: str) -> Any:
    started = http.request("POST", f"/v1/views/{view}/verify").expect(202)
    assert started["view"] == view

    def finished_proof() -> Any:
        document = http.get(f"/v1/views/{view}/verify").expect(200)
        return document["last"] if document["state"] == "done" else None

    return until(finished_proof, "the proof")


def test_a_requested_proof_of_a_view_survives_a_restart(
    cluster: Cluster, fresh: Callable[[str], str], tmp_path: Path
) -> None:
    app = shop(fresh("proof"))
    topic, view = app.topics[0], app.views[0]
    ensure_declared(cluster, topic, topic.name, 1)
    produce(cluster, topic.name, [topic.encode({"product_id": "p", "name": "n", "price": 1, "weight": None})])
    with following(cluster, view, [], tmp_path) as followed:
        until(lambda: len(((contents := followed.read()) and contents.rows) or ()) == 1, "the row")
    with served(app, cluster, tmp_path) as http:
        idle = http.get(f"/v1/views/{view.name}/verify").expect(200)
        assert (idle["state"], idle["last"]) == ("idle", None)
        proof = _verify(http, view.name)
        assert (proof["verdict"], proof["rows"], proof["records"]) == ("proven", 1, 1)
        with contextlib.closing(sqlite3.connect(tmp_path / "shop.db")) as database, database:
            database.execute(f'UPDATE "{view.name}" SET name = ?', ("another",))
        wrong = _verify_again(http, view.name, proof["at_ms"])
        assert (wrong["verdict"], wrong["different"]) == ("different", 1)
        assert any("another" in line for line in wrong["lines"])
    with served(app, cluster, tmp_path) as http:
        document = http.get(f"/v1/views/{view.name}/verify").expect(200)
        assert (document["state"], document["last"]) == ("done", wrong)


def test_a_proof_is_outdated_after_the_schema_of_its_topic_changed(
    cluster: Cluster, fresh: Callable[[str], str], tmp_path: Path
) -> None:
    name = fresh("outdated")
    app = shop(name)
    topic, view = app.topics[0], app.views[0]
    ensure_declared(cluster, topic, topic.name, 1)
    produce(cluster, topic.name, [topic.encode({"product_id": "p", "name": "n", "price": 1, "weight": None})])
    with following(cluster, view, [], tmp_path) as followed:
        until(lambda: len(((contents := followed.read()) and contents.rows) or ()) == 1, "the row")
    with served(app, cluster, tmp_path) as http:
        assert _verify(http, view.name)["verdict"] == "proven"
        assert _last_verdict(http, view.name) == "proven"
    wider = make_dataclass(
        "Product", [("product_id", str), ("name", str), ("price", Decimal), ("colour", str, "")], frozen=True
    )
    changed = App("shop")
    changed.view(view.name, changed.table(topic.name, wider, key="product_id"))
    with served(changed, cluster, tmp_path) as http:
        last = http.get(f"/v1/views/{view.name}/verify").expect(200)["last"]
        assert last["verdict"] == "outdated"
        assert f"view {view.name}: outdated: proven, but the columns" in last["line"]
        assert _last_verdict(http, view.name) == "outdated"


def _last_verdict(http: Http, view: str) -> Any:
    """The verdict in the list of views."""

    def verdict() -> Any:
        views = http.get("/v1/standings").expect(200)["views"]
        (status,) = [entry for entry in views if entry["view"] == view]
        return status["verified"] and status["verified"]["verdict"]

    return until(verdict, "the last proof")


def _verify_again(http: Http, view: str, before_ms: int) -> Any:
    http.request("POST", f"/v1/views/{view}/verify").expect(202)

    def finished_proof() -> Any:
        document = http.get(f"/v1/views/{view}/verify").expect(200)
        return (
            document["last"]
            if document["state"] == "done" and document["last"]["at_ms"] > before_ms
            else None
        )

    return until(finished_proof, "the proof")


def test_a_proof_of_an_unbuilt_view_fails_and_of_an_unknown_view_is_refused(
    cluster: Cluster, fresh: Callable[[str], str], tmp_path: Path
) -> None:
    app = shop(fresh("unbuilt"))
    view = app.views[0].name
    with served(app, cluster, tmp_path) as http:
        proof = _verify(http, view)
        assert (proof["verdict"], proof["code"]) == ("failed", "HR-VERIFY-NOT-SERVED")
        assert http.request("POST", "/v1/views/none/verify").status == 404


def test_a_view_derived_by_spark_is_refused_with_the_command_that_verifies_it(
    cluster: Cluster, tmp_path: Path
) -> None:
    view = derived_app.views[0].name
    with served(derived_app, cluster, tmp_path) as http:
        document = http.request("POST", f"/v1/views/{view}/verify").expect(409)
    assert document["code"] == "HR-SERVE-PROOF"
    assert f"headrace verify MODULE:APP {view}" in document["next"]
