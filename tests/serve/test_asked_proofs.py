"""Proofs that are asked for over HTTP, by a server without a run beside it."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

from headrace.client.cluster import Cluster
from headrace.client.declaring import ensure_declared
from tests.serve.derived import app as derived_app
from tests.serve.http import Http
from tests.serve.serving import served
from tests.serve.shop import shop
from tests.support.waiting import until
from tests.views.seeing import following, produce


def _verified(http: Http, view: str) -> Any:
    begun = http.ask("POST", f"/v1/views/{view}/verify").expect(202)
    assert begun["view"] == view

    def ended() -> Any:
        told = http.get(f"/v1/views/{view}/verify").expect(200)
        return told["last"] if told["state"] == "done" else None

    return until(ended, "the proof")


def test_a_view_is_proven_when_asked_for_and_a_restart_still_says_so(
    cluster: Cluster, fresh: Callable[[str], str], tmp_path: Path
) -> None:
    app = shop(fresh("proof"))
    topic, view = app.topics[0], app.views[0]
    ensure_declared(cluster, topic, topic.name, 1)
    produce(cluster, topic.name, [topic.encode({"product_id": "p", "name": "n", "price": 1, "weight": None})])
    with following(cluster, view, [], tmp_path) as followed:
        until(lambda: len(((seen := followed.look()) and seen.rows) or ()) == 1, "the row")
    with served(app, cluster, tmp_path) as http:
        idle = http.get(f"/v1/views/{view.name}/verify").expect(200)
        assert (idle["state"], idle["last"]) == ("idle", None)
        found = _verified(http, view.name)
        assert (found["verdict"], found["rows"], found["records"]) == ("proven", 1, 1)
        with contextlib.closing(sqlite3.connect(tmp_path / "shop.db")) as database, database:
            database.execute(f'UPDATE "{view.name}" SET name = ?', ("another",))
        wrong = _verified_anew(http, view.name, found["at_ms"])
        assert (wrong["verdict"], wrong["different"]) == ("different", 1)
        assert any("another" in line for line in wrong["lines"])
    with served(app, cluster, tmp_path) as http:
        told = http.get(f"/v1/views/{view.name}/verify").expect(200)
        assert (told["state"], told["last"]) == ("done", wrong)


def _verified_anew(http: Http, view: str, before_ms: int) -> Any:
    http.ask("POST", f"/v1/views/{view}/verify").expect(202)

    def ended() -> Any:
        told = http.get(f"/v1/views/{view}/verify").expect(200)
        return told["last"] if told["state"] == "done" and told["last"]["at_ms"] > before_ms else None

    return until(ended, "the proof")


def test_a_view_that_is_not_there_to_be_verified_is_said_to_be_so(
    cluster: Cluster, fresh: Callable[[str], str], tmp_path: Path
) -> None:
    app = shop(fresh("unbuilt"))
    view = app.views[0].name
    with served(app, cluster, tmp_path) as http:
        found = _verified(http, view)
        assert (found["verdict"], found["code"]) == ("failed", "HR-VERIFY-NOT-SERVED")
        assert http.ask("POST", "/v1/views/none/verify").status == 404


def test_a_view_that_spark_derives_is_refused_with_the_command_that_verifies_it(
    cluster: Cluster, tmp_path: Path
) -> None:
    view = derived_app.views[0].name
    with served(derived_app, cluster, tmp_path) as http:
        told = http.ask("POST", f"/v1/views/{view}/verify").expect(409)
    assert told["code"] == "HR-SERVE-PROOF"
    assert f"headrace verify MODULE:APP {view}" in told["next"]
