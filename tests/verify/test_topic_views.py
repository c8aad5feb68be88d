"""Proofs of views of topics that no flow writes. Verify computes the last row of each key. Needs no Spark."""

from __future__ import annotations

import json
import sqlite3
import uuid
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import TopicPartition

from faults.flows.world import FlowWorld
from faults.views.follower_thread import following, produce
from faults.wait import until
from headrace.app import App
from headrace.ops.verify.errors import NotServed, StoreUnreadable
from headrace.ops.verify.report import Report
from headrace.ops.verify.verifier import verify_view
from headrace.settings import Settings
from tests.verify.test_deleted_input import COMPACTED

pytestmark = pytest.mark.usefixtures("compiled_plans")


@dataclass(frozen=True)
class Order:
    order: str
    amount: int
    customer: str = ""


class Shop:
    """An app with one view, in a folder of its own."""

    def __init__(self, world: FlowWorld, home: Path, *, key: str = "", **configs: str) -> None:
        self.cluster = world.cluster
        self.home = home
        self.app = App("shop")
        name = f"orders-{uuid.uuid4().hex[:8]}"
        self.topic = self.cluster.ensure_topic(name, 1, configs).name
        self.view = self.app.view(name, self.app.table(name, Order, key="order"), key=key or "order")

    def write(self, *orders: tuple[str, int | None], customer: str = "") -> None:
        def value(order: str, amount: int) -> bytes:
            return json.dumps({"order": order, "amount": amount, "customer": customer}).encode()

        records: list[tuple[bytes | None, bytes | None]] = [
            (order.encode(), None if amount is None else value(order, amount)) for order, amount in orders
        ]
        produce(self.cluster, self.topic, records)

    def follow(self, rows: dict[str, Any]) -> None:
        with following(self.cluster, self.view, [], self.home) as followed:
            followed.expect(rows)

    def store(self, statement: str) -> None:
        with closing(sqlite3.connect(self.home / "shop.db")) as connection, connection:
            connection.execute(statement)

    def verify(self) -> Report:
        return verify_view(None, self.cluster, self.app, self.view, Settings(data=self.home), (), {})


def rows(*orders: tuple[str, int], customer: str = "") -> dict[str, Any]:
    return {order: (order, amount, customer) for order, amount in orders}


def test_a_table_view_has_the_last_row_of_each_key_of_its_topic(
    flow_world: FlowWorld, tmp_path: Path
) -> None:
    shop = Shop(flow_world, tmp_path)
    shop.write(("a", 1), ("b", 2), ("a", 3), ("c", 4), ("b", None))
    shop.follow(rows(("a", 3), ("c", 4)))
    report = shop.verify()
    assert (report.verdict, report.found_rows, report.records, report.behind) == ("proven", 2, 5, 0)
    shop.write(("a", 9))
    report = shop.verify()
    assert (report.verdict, report.behind) == ("proven", 1)


def test_a_value_that_does_not_fit_is_accepted_only_with_its_own_dead_letter(
    flow_world: FlowWorld, tmp_path: Path
) -> None:
    shop = Shop(flow_world, tmp_path)
    shop.write(("a", 1))
    produce(shop.cluster, shop.topic, [(b"a", b"no JSON")])
    shop.write(("b", 2))
    shop.follow(rows(("a", 1), ("b", 2)))
    report = shop.verify()
    assert (report.verdict, report.dead) == ("proven", 1), report.lines()
    other = Shop(flow_world, tmp_path / "other")
    produce(other.cluster, other.topic, [(b"a", b"no JSON")])
    other.write(("b", 2))
    other.follow(rows(("b", 2)))
    end = TopicPartition(other.view.dead_topic, 0, 1)
    other.cluster.admin().delete_records([end])[end].result(10)
    report = other.verify()
    assert [finding.kind for finding in report.findings] == ["books"]
    assert "offset 0" in report.findings[0].message


def test_deleted_records_leave_the_rows_of_others_provable(flow_world: FlowWorld, tmp_path: Path) -> None:
    shop = Shop(flow_world, tmp_path)
    shop.write(("a", 1), ("b", 2), ("c", 3), ("b", 4))
    shop.follow(rows(("a", 1), ("b", 4), ("c", 3)))
    end = TopicPartition(shop.topic, 0, 2)
    shop.cluster.admin().delete_records([end])[end].result(10)
    report = shop.verify()
    assert (report.verdict, report.unprovable_rows, report.expected_rows) == ("unprovable", 1, 2)
    assert [(item.topic, item.partition, item.before) for item in report.unprovable] == [(shop.topic, 0, 2)]
    shop.store(f'UPDATE "{shop.view.name}" SET amount = 5')
    report = shop.verify()
    assert report.exit_code == 1
    assert {difference.key["order"] for difference in report.differences} == {"b", "c"}


def test_compaction_does_not_affect_the_proof_of_a_view_at_the_end_of_its_topic(
    flow_world: FlowWorld, tmp_path: Path
) -> None:
    shop = Shop(flow_world, tmp_path, **COMPACTED, **{"delete.retention.ms": "0"})
    shop.write(("a", 1), ("gone", 1), ("gone", None))
    customer = "x" * 300
    for number in range(40):
        shop.write(("b", number), customer=customer)
    shop.write(("c", 1), customer=customer)

    def is_compacted() -> bool:
        result = shop.cluster.configs(shop.topic).get("headrace.tombstones.removed.below") or "0:0"
        return int(result.split(":")[1]) > 2

    until(is_compacted, "compaction", pause_s=0.05)
    shop.follow(rows(("a", 1)) | rows(("b", 39), ("c", 1), customer=customer))
    report = shop.verify()
    assert report.records < 43
    assert report.proven, report.lines()
    # If a view is behind, compaction may have removed a row that the view should still have.
    behind = '{"0":30}'
    shop.store(f'DELETE FROM "{shop.view.name}" WHERE "order" = \'c\'')
    shop.store(f"UPDATE _headrace_views SET offsets = '{behind}'")
    report = shop.verify()
    assert (report.verdict, report.unprovable_rows) == ("unprovable", 1), report.lines()
    assert report.unprovable[0].before == 30


def test_a_view_never_followed_or_changed_by_hand_is_not_verified_with_the_reason(
    flow_world: FlowWorld, tmp_path: Path
) -> None:
    shop = Shop(flow_world, tmp_path)
    with pytest.raises(NotServed, match=r"shop\.db does not exist"):
        shop.verify()
    shop.write(("a", 1))
    shop.follow(rows(("a", 1)))
    shop.store(f'ALTER TABLE "{shop.view.name}" ADD COLUMN mine')
    with pytest.raises(StoreUnreadable, match="was changed after its follower created it"):
        shop.verify()
    shop.store(f'ALTER TABLE "{shop.view.name}" DROP COLUMN mine')
    assert shop.verify().proven
    shop.store("UPDATE _headrace_views SET part = 'building'")
    with pytest.raises(NotServed, match="does not serve"):
        shop.verify()
    (tmp_path / "shop.db").write_bytes(b"no database")
    with pytest.raises(StoreUnreadable, match="cannot read"):
        shop.verify()


def test_a_view_with_another_key_has_the_last_record_of_that_key(
    flow_world: FlowWorld, tmp_path: Path
) -> None:
    shop = Shop(flow_world, tmp_path, key="customer")
    shop.write(("a", 1), ("b", 2), customer="ann")
    shop.write(("c", 3), customer="bob")
    with following(shop.cluster, shop.view, [], tmp_path) as followed:
        followed.expect({"b": ("b", 2, "ann"), "c": ("c", 3, "bob")})
    assert shop.verify().proven
    shop.store(f"UPDATE \"{shop.view.name}\" SET \"order\" = 'a', amount = 1 WHERE customer = 'ann'")
    report = shop.verify()
    assert [difference.key for difference in report.differences] == [{"customer": "ann"}]
