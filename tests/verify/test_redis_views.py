"""Proofs of views in Redis: they report every manual change of the stored rows. Needs no Spark."""

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
from faults.servers.redis import RedisServer, running
from faults.views.follower_thread import following, produce
from faults.wait import until
from headrace.app import App
from headrace.client.cluster import Cluster
from headrace.ops.verify.errors import NotServed, StoreUnreadable
from headrace.ops.verify.report import Report
from headrace.ops.verify.verifier import verify_view
from headrace.settings import Settings
from headrace.stores import Redis


@dataclass(frozen=True)
class Order:
    order: str
    line: int
    amount: int | None = None
    price: Decimal | None = None
    share: float | None = None
    paid: bool | None = None
    at: datetime | None = None
    day: date | None = None
    raw: bytes | None = None
    lines: list[str] | None = None
    note: str | None = None


class Shop:
    def __init__(self, cluster: Cluster, server: RedisServer, home: Path, key: tuple[str, ...]) -> None:
        self.cluster, self.home = cluster, home
        self.client = server.client()
        self.app = App("shop")
        self.name = f"orders-{len(key)}-{home.name}"[:100]
        self.key = f"shop:{self.name}"
        cluster.ensure_topic(self.name, 1)
        self.topic = self.app.table(self.name, Order, key=list(key))
        self.view = self.app.view(self.name, self.topic, store=Redis(server.url))

    def write(self, *orders: Order | tuple[bytes, bytes | None]) -> None:
        records = [item if isinstance(item, tuple) else self.topic.encode(item) for item in orders]
        produce(self.cluster, self.name, records)

    def follow(self) -> None:
        with following(self.cluster, self.view, [], self.home) as followed:
            until(lambda: followed.error or self._is_at_end(), "the view")

    def _is_at_end(self) -> bool:
        noted = self.noted("serving")
        return noted is not None and noted["offsets"] == {"0": self.cluster.ends(self.name)[0]}

    def noted(self, name: str) -> Any:
        found = self.client.hget(f"{{{self.key}}}:headrace", name)
        return None if found is None else json.loads(found)

    def note(self, name: str, value: Any) -> None:
        self.client.hset(f"{{{self.key}}}:headrace", name, json.dumps(value))

    def change(self, field: str, **columns: Any) -> None:
        self.client.hset(self.key, field, json.dumps(json.loads(self.client.hget(self.key, field)) | columns))

    def verify(self) -> Report:
        return verify_view(None, self.cluster, self.app, self.view, Settings(data=self.home), (), {})

    def differences(self) -> set[tuple[str, str, tuple[str, ...]]]:
        found = self.verify().differences
        return {(row.kind, str(row.key["order"]), tuple(row.columns or ())) for row in found}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    server = start_headrace(tmp_path_factory.mktemp("log"))
    yield Cluster(server.bootstrap, timeout_s=5.0)
    server.stop()


@pytest.fixture(scope="module", params=["COPY", "no COPY"])
def server(request: pytest.FixtureRequest) -> Iterator[RedisServer]:
    """A current server, and one without the COPY command."""
    with running(*(("--rename-command", "COPY", "") if request.param == "no COPY" else ())) as created:
        yield created


@pytest.fixture(params=[("order",), ("order", "line")], ids=["one", "several"])
def shop(
    request: pytest.FixtureRequest,
    cluster: Cluster,
    server: RedisServer,
    tmp_path_factory: pytest.TempPathFactory,
) -> Shop:
    home = tmp_path_factory.mktemp("shop")
    server.client().flushall()
    return Shop(cluster, server, home.with_name(f"{home.name}-{server.home.name}"), request.param)


FULL = Order(
    "full", 1, -(2**63), Decimal("-12.500000"), float("nan"), False, datetime(1, 1, 1, tzinfo=UTC),
    date(9999, 12, 31), b"\0\xff", ["a\tb", "\\", "é\0"], "tab\tline\nback\\slash \0",
)  # fmt: skip


def test_unchanged_rows_are_proven_and_changed_rows_are_reported(shop: Shop) -> None:
    shop.write(
        Order("a", 1, 1),
        Order("b", 1, 2),
        FULL,
        Order("inf", 1, share=float("-inf")),
        Order("a", 1, 3),
        Order("c", 1, 4),
    )
    shop.write((shop.topic.encode(Order("c", 1))[0] or b"", None))
    shop.follow()
    report = shop.verify()
    assert (report.verdict, report.found_rows) == ("proven", 4), report.lines()
    fields = {
        json.loads(value)["order"]: field.decode() for field, value in shop.client.hgetall(shop.key).items()
    }
    kept = shop.client.dump(shop.key)
    shop.change(fields["a"], amount=9)
    shop.client.hset(shop.key, fields["inf"], b"garbage \xff")
    shop.client.hset(shop.key, fields["full"], shop.client.hget(shop.key, fields["b"]))
    shop.client.hset(
        shop.key,
        fields["b"].replace("b", "new"),
        shop.client.hget(shop.key, fields["b"]).replace(b'"b"', b'"new"'),
    )
    shop.client.hdel(shop.key, fields["b"])
    found = {(kind, order) for kind, order, _ in shop.differences()}
    assert found == {
        ("different", "a"), ("different", "inf"), ("different", "full"), ("missing", "b"), ("extra", "new"),
    }  # fmt: skip
    changes: dict[str, Any] = {
        "price": -12.500001, "share": 0, "paid": True, "at": "0001-01-01T00:00:00.000001Z", "day": "9999-12-30",
        "raw": "AP4=", "lines": ["a"], "note": None, "amount": 2**63 - 1,
    }  # fmt: skip
    for column, value in changes.items():
        shop.client.restore(shop.key, 0, kept, replace=True)
        shop.change(fields["full"], **{column: value})
        # Differences that come only from the number format of the test's own JSON are ignored.
        named = {column for _, _, columns in shop.differences() for column in columns}
        assert column in named
    assert not [key for key in shop.client.scan_iter() if b"verify" in key]


def test_a_moved_position_is_reported(shop: Shop) -> None:
    shop.write(Order("a", 1), Order("b", 2))
    shop.follow()
    position = shop.noted("serving")
    shop.note("serving", position | {"offsets": {"0": 7}})
    report = shop.verify()
    assert [finding.kind for finding in report.findings] == ["position"]
    assert "offset 7" in report.findings[0].message
    shop.note("serving", position | {"offsets": {"0": 1}})
    assert [(difference.kind, difference.key["order"]) for difference in shop.verify().differences] == [
        ("extra", "b")
    ]


def test_a_view_that_does_not_serve_or_cannot_be_read_is_reported_with_the_reason(shop: Shop) -> None:
    with pytest.raises(NotServed, match="contains no view"):
        shop.verify()
    shop.write(Order("a", 1))
    shop.follow()
    known = f"{{{shop.key}}}:headrace"
    kept = shop.client.hgetall(known)
    shop.client.hdel(known, "serving")
    with pytest.raises(NotServed, match="does not serve"):
        shop.verify()
    shop.client.hset(known, mapping=kept)
    shop.client.set(shop.key, "something else")
    with pytest.raises(StoreUnreadable, match="WRONGTYPE"):
        shop.verify()
    shop.client.delete(shop.key)
    assert [(difference.kind, difference.key["order"]) for difference in shop.verify().differences] == [
        ("missing", "a")
    ]
