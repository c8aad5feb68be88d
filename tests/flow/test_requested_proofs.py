"""Requests to a server while flows run: prove a view, and write a flow's dead letters back."""

from __future__ import annotations

import sqlite3
import uuid
from contextlib import closing
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from faults.flows.world import FlowWorld
from faults.serve.http import Http
from faults.wait import until
from headrace.app import App
from headrace.client.records import read
from tests.flow.served_app import served_app
from tests.flow.test_flows import Sale, sale


def _proof(http: Http, view: str, after_ms: int = 0) -> Any:
    http.request("POST", f"/v1/views/{view}/verify").expect(202)

    def ended() -> Any:
        status = http.get(f"/v1/views/{view}/verify").expect(200)
        done = status["state"] == "done" and status["last"]["at_ms"] > after_ms
        return status["last"] if done else None

    return until(ended, "the proof", timeout_s=120)


def test_a_view_of_a_flow_is_proven_in_the_run_and_its_dead_letters_are_written_back(
    flow_world: FlowWorld, tmp_path: Path
) -> None:
    mark = uuid.uuid4().hex[:8]
    app = App(f"asked-{mark}")
    sales = app.topic(f"sales-{mark}", Sale, key="sale_id", time="at")
    sums = app.topic(f"sums-{mark}", key="product_id")

    @app.flow(reads=[sales], writes=sums, name=f"sum-{mark}", unbounded=True)
    def sum_up(sales: DataFrame) -> DataFrame:
        return sales.groupBy("product_id").agg(F.sum("amount").alias("amount"))

    view = app.view(f"sums-{mark}-view", sums)
    flow_world.declare(app)
    cluster, dead = flow_world.cluster, f"asked-{mark}.sum-{mark}.dead"
    flow_world.write(sales, [sale(number, product=f"p{number % 3}", after_s=number) for number in range(9)])
    producer = cluster.producer({"linger.ms": 0})
    producer.produce(sales.name, key=b"k", value=b"no sale", headers=[("till", b"3")])
    assert producer.flush(30) == 0
    with served_app(flow_world, app, tmp_path) as (run, http):
        until(lambda: len(_rows(http, view.name)) == 3, "the rows", timeout_s=120)
        proven = _proof(http, view.name)
        assert (proven["verdict"], proven["rows"], proven["records"]) == ("proven", 3, 10)

        until(lambda: _letters(http, dead) == 1, "the letter")
        done = http.post(f"/v1/dead/{dead}/replay", {"letters": "all"}).expect(200)
        assert (done["totals"]["written"], done["results"][0]["headers"]) == (1, "kept")
        assert f"flow sum-{mark}" in done["words"][0]
        # The value still does not fit the schema.
        until(lambda: _letters(http, dead) == 2, "the letter's letter", timeout_s=120)
        ends = {partition: (0, end) for partition, end in cluster.ends(sales.name).items()}
        found = [
            dict(partition.headers() or ())
            for partition in read(cluster, sales.name, ends)
            if partition.headers()
        ]  # type: ignore[arg-type]
        assert [partition["till"] for partition in found] == [b"3", b"3"]
        assert found[1]["__headrace.replay.letter"].decode() == f"{dead}/0/0"
        # The new dead letter is about another record than the first one.
        again = http.post(f"/v1/dead/{dead}/replay", {"letters": "all", "dry_run": True}).expect(200)
        assert (again["totals"]["already"], again["totals"]["ready"]) == (1, 1)

        with closing(sqlite3.connect(tmp_path / f"asked-{mark}.db")) as database, database:
            database.execute(f'UPDATE "{view.name}" SET amount = 7 WHERE product_id = ?', ("p1",))
        wrong = _proof(http, view.name, proven["at_ms"])
        assert (wrong["verdict"], wrong["different"]) == ("different", 1)
        assert run.differing == [view.name]


def _rows(http: Http, view: str) -> list[Any]:
    reply = http.get(f"/v1/views/{view}/rows")
    return reply.json["rows"] if reply.status == 200 else []


def _letters(http: Http, dead: str) -> int:
    topics = http.get("/v1/dead").expect(200)["topics"]
    return next(topic["letters"] for topic in topics if topic["topic"] == dead)
