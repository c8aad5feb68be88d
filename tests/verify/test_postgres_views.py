"""Proofs of views in PostgreSQL: they report every manual change of the stored rows. Needs no Spark."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from faults.servers.headrace_broker import start_headrace
from faults.servers.postgres import PostgresServer, shared_server
from faults.views.follower_thread import following, produce
from faults.wait import until
from headrace.app import App
from headrace.client.cluster import Cluster
from headrace.ops.verify.errors import NotServed, StoreUnreadable
from headrace.ops.verify.report import Report
from headrace.ops.verify.verifier import verify_view
from headrace.settings import Settings
from headrace.stores import Postgres


@dataclass(frozen=True)
class Order:
    order: str
    amount: int | None
    price: Decimal | None = None
    share: float | None = None
    paid: bool | None = None
    at: datetime | None = None
    day: date | None = None
    raw: bytes | None = None
    lines: list[str] | None = None
    note: str | None = None


class Shop:
    def __init__(self, cluster: Cluster, server: PostgresServer, home: Path) -> None:
        self.cluster, self.server, self.home = cluster, server, home
        self.database = server.database()
        self.app = App("shop")
        self.name = f"orders-{self.database}"
        cluster.ensure_topic(self.name, 1)
        self.topic = self.app.table(self.name, Order, key="order")
        self.view = self.app.view(self.name, self.topic, store=Postgres(server.url(self.database)))

    def write(self, *orders: Order | tuple[bytes, bytes | None]) -> None:
        produce(
            self.cluster,
            self.name,
            [item if isinstance(item, tuple) else self.topic.encode(item) for item in orders],
        )

    def follow(self) -> None:
        with following(self.cluster, self.view, [], self.home) as followed:
            until(lambda: followed.error or self._is_at_end(), "the view")

    def _is_at_end(self) -> bool:
        try:
            found = self.sql("SELECT offsets->>'0' FROM _headrace_views WHERE part = 'serving'")
        except Exception:
            return False
        return found == [(str(self.cluster.ends(self.name)[0]),)]

    def sql(self, statement: str) -> list[tuple[Any, ...]]:
        return self.server.execute(statement, self.database)

    def verify(self) -> Report:
        return verify_view(None, self.cluster, self.app, self.view, Settings(data=self.home), (), {})


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    server = start_headrace(tmp_path_factory.mktemp("log"))
    yield Cluster(server.bootstrap, timeout_s=5.0)
    server.stop()


@pytest.fixture
def shop(cluster: Cluster, tmp_path: Path) -> Iterator[Shop]:
    created = Shop(cluster, shared_server(), tmp_path)
    yield created
    created.server.drop(created.database)


FULL = Order(
    "full", -(2**63), Decimal("-12.500000"), float("nan"), False, datetime(1, 1, 1, tzinfo=UTC), date(9999, 12, 31),
    b"\0\xff", ["a\tb", "\\", "é\0"], "tab\tline\nback\\slash \\N",
)  # fmt: skip


def test_unchanged_rows_are_proven_and_changed_rows_are_reported(shop: Shop) -> None:
    shop.write(
        Order("a", 1),
        Order("b", 2),
        FULL,
        Order("inf", None, share=float("-inf")),
        Order("a", 3),
        Order("c", 4),
    )
    shop.write((b"c", None), (b"x", json.dumps({"order": "x", "amount": 1, "note": "\0"}).encode()))
    shop.follow()
    report = shop.verify()
    assert (report.verdict, report.found_rows, report.dead) == ("proven", 4, 1), report.lines()
    table = f'"{shop.name}"'
    shop.sql(f"UPDATE {table} SET amount = 9 WHERE \"order\" = 'a'")
    shop.sql(f"DELETE FROM {table} WHERE \"order\" = 'b'")
    shop.sql(f"INSERT INTO {table} (\"order\", amount) VALUES ('new', 1)")
    report = shop.verify()
    assert report.exit_code == 1
    assert {(difference.kind, difference.key["order"]) for difference in report.differences} == {
        ("different", "a"),
        ("missing", "b"),
        ("extra", "new"),
    }
    different = next(difference for difference in report.differences if difference.kind == "different")
    assert different.columns == ["amount"]


def test_a_change_of_any_column_is_detected(shop: Shop) -> None:
    shop.write(FULL)
    shop.follow()
    for column, value in {
        "price": "-12.500001",
        "share": "0",
        "paid": "true",
        "at": "'0001-01-01 00:00:00.000001Z'",
        "day": "'9999-12-30'",
        "raw": "'\\x00fe'",
        "lines": "'[\"a\"]'",
        "note": "NULL",
    }.items():
        shop.sql(f'CREATE TABLE kept AS TABLE "{shop.name}"')
        shop.sql(f'UPDATE "{shop.name}" SET "{column}" = {value}')
        report = shop.verify()
        assert [(difference.kind, difference.columns) for difference in report.differences] == [
            ("different", [column])
        ]
        shop.sql(f'DELETE FROM "{shop.name}"; INSERT INTO "{shop.name}" TABLE kept; DROP TABLE kept')
    assert shop.verify().proven


def test_a_moved_position_is_reported(shop: Shop) -> None:
    shop.write(Order("a", 1), Order("b", 2))
    shop.follow()
    shop.sql("UPDATE _headrace_views SET offsets = '{\"0\":7}'")
    report = shop.verify()
    assert [finding.kind for finding in report.findings] == ["position"]
    assert "offset 7" in report.findings[0].message
    shop.sql("UPDATE _headrace_views SET offsets = '{\"0\":1}'")
    report = shop.verify()
    assert [(difference.kind, difference.key["order"]) for difference in report.differences] == [
        ("extra", "b")
    ]


def test_an_unreadable_store_is_reported_as_not_verified_with_the_reason(shop: Shop) -> None:
    with pytest.raises(NotServed, match="contains no views"):
        shop.verify()
    shop.write(Order("a", 1))
    shop.follow()
    shop.sql(f'ALTER TABLE "{shop.name}" ADD COLUMN mine int')
    with pytest.raises(StoreUnreadable, match="was changed after its follower created it"):
        shop.verify()
    shop.sql(f'ALTER TABLE "{shop.name}" DROP COLUMN mine')
    assert shop.verify().proven
    shop.sql("UPDATE _headrace_views SET part = 'building'")
    with pytest.raises(NotServed, match="does not serve"):
        shop.verify()
    shop.server.drop(shop.database)
    with pytest.raises(StoreUnreadable, match="cannot read"):
        shop.verify()
