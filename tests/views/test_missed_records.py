"""Followers that return too late, with a view on a server: missed records are reported."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from faults.servers.postgres import shared_server
from faults.servers.redis import fresh_database, shared
from faults.views.follower_thread import following, produce
from faults.wait import until
from headrace.app import App
from headrace.client.cluster import Cluster
from headrace.model.declarations import View
from headrace.stores import Postgres, Redis
from tests.views.postgres.database import sql
from tests.views.test_topic_views import COMPACTED, Order, record, removed_below, trim

Fresh = Callable[[str], str]
ReadRows = Callable[[], dict[str, int]]


@contextlib.contextmanager
def in_postgres(name: str) -> Iterator[tuple[Postgres, ReadRows]]:
    server = shared_server()
    database = server.database()
    url = server.url(database)
    try:
        yield Postgres(url), lambda: dict(sql(url, f'SELECT "order", amount FROM "{name}"'))  # type: ignore[arg-type]
    finally:
        server.drop(database)


@contextlib.contextmanager
def in_redis(name: str) -> Iterator[tuple[Redis, ReadRows]]:
    database = fresh_database()
    with contextlib.closing(shared().client(database)) as client:
        client.flushdb()

        def read_rows() -> dict[str, int]:
            found: dict[bytes, bytes] = client.hgetall(f"shop:{name}")
            return {key.decode(): json.loads(value)["amount"] for key, value in found.items()}

        yield Redis(f"{shared().url}?db={database}"), read_rows


@pytest.fixture(params=[in_postgres, in_redis], ids=["postgres", "redis"])
def view(request: pytest.FixtureRequest, fresh: Fresh) -> Iterator[tuple[View, ReadRows]]:
    app, name = App("shop"), fresh("orders")
    with request.param(name) as (store, read_rows):
        yield app.view(name, app.table(name, Order, key="order"), store=store), read_rows


def test_records_deleted_before_they_were_read_are_reported_and_the_view_is_rebuilt(
    cluster: Cluster, view: tuple[View, ReadRows], tmp_path: Path
) -> None:
    declared, read_rows = view
    topic = cluster.ensure_topic(declared.topic.name, 1).name
    follow(cluster, declared, read_rows, tmp_path, [record("a"), record("b")], {"a": 1, "b": 1})
    produce(cluster, topic, [record("c"), record("d")])
    trim(cluster, topic, 3)
    result = follow(cluster, declared, read_rows, tmp_path, [], {"d": 1})
    assert any("records 2 to 2" in line for line in result)


def test_a_tombstone_removed_before_the_follower_read_it_causes_a_rebuild(
    cluster: Cluster, view: tuple[View, ReadRows], tmp_path: Path
) -> None:
    declared, read_rows = view
    topic = cluster.ensure_topic(declared.topic.name, 1, {**COMPACTED, "delete.retention.ms": "0"}).name
    follow(cluster, declared, read_rows, tmp_path, [record("a"), record("b")], {"a": 1, "b": 1})
    produce(cluster, topic, [(b"a", None)])
    for number in range(30):
        produce(cluster, topic, [record("fill", number, note="x" * 700)])
    until(lambda: removed_below(cluster, topic) > 2, "the deletion is gone", pause_s=0.05)
    result = follow(cluster, declared, read_rows, tmp_path, [], {"b": 1, "fill": 29})
    assert any("tombstones in partition 0" in line for line in result)


def follow(
    cluster: Cluster, view: View, read_rows: ReadRows, home: Path, records: list[Any], rows: dict[str, int]
) -> list[str]:
    """Follow until the view has these rows; return the reports. Also check that the follower built the view exactly
    once.
    """
    produce(cluster, view.topic.name, records)
    with following(cluster, view, [], home) as followed:
        followed.until_state("following")
        until(lambda: read_rows() == rows, f"{rows}", pause_s=0.01)
        assert followed.follower.status.rebuilds == 1
        return followed.lines
