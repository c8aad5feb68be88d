"""The same app on Apache Kafka: nothing may depend on the kind of log."""

from __future__ import annotations

import contextlib
import dataclasses
import sqlite3
from collections.abc import Iterator
from datetime import datetime, timedelta
from decimal import Decimal
from pathlib import Path

import pytest

from faults.flows.world import FlowWorld
from faults.servers.apache_kafka import start_kafka
from faults.servers.server import Server
from headrace.client.cluster import Cluster
from headrace.flow.switch.operation import publish, switch_back, switch_now
from headrace.stores import SQLite
from tests.flow.test_flows import NOON, Shop, all_batches, expect_contiguous, sale
from tests.flow.topic_contents import last_values, values
from tests.support.rental import Rental


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    kafka = start_kafka(tmp_path_factory.mktemp("kafka"))
    yield kafka
    kafka.kill()


def test_flows_and_views_run_on_apache_kafka(flow_world: FlowWorld, server: Server, tmp_path: Path) -> None:
    shop = Shop()
    kept = dataclasses.replace(shop.kept)
    shop.app.view("kept", kept, store=SQLite())
    shop.app.view("sums", shop.sums, store=SQLite())
    world = FlowWorld(server, Cluster(server.bootstrap), flow_world.spark, tmp_path)
    sent = [sale(n, product=f"p{n % 3}", amount="1.5", after_s=n) for n in range(120)]
    for part, max_rows in ((sent[:50], 10), (sent[50:], 100_000)):
        world.write(shop.sales, part)
        with world.running(shop.app, max_rows=max_rows) as run:
            run.wait_until_followed()
    expect_contiguous(all_batches(world, shop.keep))
    rows = values(server.bootstrap, shop.kept.name)
    assert sorted(row["sale_id"] for row in rows) == sorted(sent_sale.sale_id for sent_sale in sent)
    sums = last_values(server.bootstrap, shop.sums.name)
    with contextlib.closing(sqlite3.connect(tmp_path / f"{shop.app.name}.db")) as views:
        assert views.execute("SELECT count(*) FROM kept").fetchone() == (120,)
        found = views.execute("SELECT product_id, minute, amount, sales FROM sums").fetchall()
    expected = {(row["product_id"], row["minute"]): (row["amount"], row["sales"]) for row in sums.values()}
    assert {(p, minute): (float(amount), sales) for p, minute, amount, sales in found} == expected
    in_first = [row for row in found if datetime.fromisoformat(row[1]) == NOON]
    assert {row[0]: Decimal(row[2]) for row in in_first} == dict.fromkeys(("p0", "p1", "p2"), Decimal("30"))
    assert NOON + timedelta(minutes=2) not in {datetime.fromisoformat(row[1]) for row in found}


def test_generations_switch_there_and_back_on_apache_kafka(server: Server) -> None:
    rental = Rental(Cluster(server.bootstrap))
    rental.write(3)
    rental.derive(rental.count, rental.begin(rental.count), {"b0": 1, "b1": 1, "b2": 1})
    rental.derive(rental.count, rental.begin(rental.count), {"b0": 1, "b1": 2, "b3": 1})
    stable = rental.count.writes.name
    report = switch_now(rental.cluster, rental.count, 2, accepts_behind=True)
    counts = report.counts
    assert (counts.gone, counts.changed, counts.new) == (1, 1, 1)
    assert [(sample.kind, sample.key) for sample in report.samples] == [
        ("gone", "b2"),
        ("changed", "b1"),
        ("new", "b3"),
    ]
    assert _minutes(server, stable) == {"b0": 1, "b1": 2, "b3": 1}
    switch_back(rental.cluster, rental.count, 1, accepts_behind=True)
    assert _minutes(server, stable) == {"b0": 1, "b1": 2, "b3": 1}
    publish(rental.cluster, rental.count)
    assert _minutes(server, stable) == {"b0": 1, "b1": 1, "b2": 1}
    assert rental.generations(rental.count).serving == 1


def _minutes(server: Server, topic: str) -> dict[str, int]:
    return {key: row["minutes"] for key, row in last_values(server.bootstrap, topic).items()}
