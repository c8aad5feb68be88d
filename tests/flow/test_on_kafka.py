"""The same app on Apache Kafka: nothing may depend on the kind of log."""

from __future__ import annotations

import contextlib
import dataclasses
import sqlite3
from datetime import datetime, timedelta
from decimal import Decimal
from pathlib import Path

from faults.flows.world import FlowWorld
from faults.servers.apache_kafka import start_kafka
from headrace.client.cluster import Cluster
from headrace.stores import SQLite
from tests.flow.test_flows import NOON, Shop, all_batches, expect_contiguous, sale
from tests.flow.topic_contents import last_values, values


def test_flows_and_views_run_on_apache_kafka(flow_world: FlowWorld, tmp_path: Path) -> None:
    shop = Shop()
    kept = dataclasses.replace(shop.kept)
    shop.app.view("kept", kept, store=SQLite())
    shop.app.view("sums", shop.sums, store=SQLite())
    server = start_kafka(tmp_path / "kafka")
    try:
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
        expected = {
            (row["product_id"], row["minute"]): (row["amount"], row["sales"]) for row in sums.values()
        }
        assert {(p, minute): (float(amount), sales) for p, minute, amount, sales in found} == expected
        in_first = [row for row in found if datetime.fromisoformat(row[1]) == NOON]
        assert {row[0]: Decimal(row[2]) for row in in_first} == dict.fromkeys(
            ("p0", "p1", "p2"), Decimal("30")
        )
        assert NOON + timedelta(minutes=2) not in {datetime.fromisoformat(row[1]) for row in found}
    finally:
        server.kill()
