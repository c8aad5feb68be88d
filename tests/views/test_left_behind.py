"""Followers that come back too late, with a view on a server: what they have missed is not passed over in silence."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace.app import App
from headrace.client.cluster import Cluster
from headrace.model.view import View
from headrace.stores import Postgres, Redis
from tests.support.postgres import shared_server
from tests.support.redis import fresh_database, shared
from tests.support.waiting import until
from tests.views.postgres.looking import sql
from tests.views.seeing import following, produce
from tests.views.test_topic_views import COMPACTED, Order, record, removed_below, trim

Fresh = Callable[[str], str]
Look = Callable[[], dict[str, int]]


@contextlib.contextmanager
def in_postgres(name: str) -> Iterator[tuple[Postgres, Look]]:
    server = shared_server()
    database = server.database()
    url = server.url(database)
    try:
        yield Postgres(url), lambda: dict(sql(url, f'SELECT "order", amount FROM "{name}"'))  # type: ignore[arg-type]
    finally:
        server.drop(database)


@contextlib.contextmanager
def in_redis(name: str) -> Iterator[tuple[Redis, Look]]:
    database = fresh_database()
    with contextlib.closing(shared().client(database)) as client:
        client.flushdb()

        def look() -> dict[str, int]:
            found: dict[bytes, bytes] = client.hgetall(f"shop:{name}")
            return {key.decode(): json.loads(value)["amount"] for key, value in found.items()}

        yield Redis(f"{shared().url}?db={database}"), look


@pytest.fixture(params=[in_postgres, in_redis], ids=["postgres", "redis"])
def view(request: pytest.FixtureRequest, fresh: Fresh) -> Iterator[tuple[View, Look]]:
    app, name = App("shop"), fresh("orders")
    with request.param(name) as (store, look):
        yield app.view(name, app.table(name, Order, key="order"), store=store), look


def test_records_that_were_deleted_before_they_were_read_are_told_and_the_view_is_built_again(
    cluster: Cluster, view: tuple[View, Look], tmp_path: Path
) -> None:
    declared, look = view
    topic = cluster.ensure_topic(declared.topic.name, 1).name
    follow(cluster, declared, look, tmp_path, [record("a"), record("b")], {"a": 1, "b": 1})
    produce(cluster, topic, [record("c"), record("d")])
    trim(cluster, topic, 3)
    told = follow(cluster, declared, look, tmp_path, [], {"d": 1})
    assert any("records 2 to 2" in line for line in told)


def test_a_deletion_that_is_not_kept_any_more_is_not_missed(
    cluster: Cluster, view: tuple[View, Look], tmp_path: Path
) -> None:
    declared, look = view
    topic = cluster.ensure_topic(declared.topic.name, 1, {**COMPACTED, "delete.retention.ms": "0"}).name
    follow(cluster, declared, look, tmp_path, [record("a"), record("b")], {"a": 1, "b": 1})
    produce(cluster, topic, [(b"a", None)])
    for number in range(30):
        produce(cluster, topic, [record("fill", number, note="x" * 700)])
    until(lambda: removed_below(cluster, topic) > 2, "the deletion is gone", pause_s=0.05)
    told = follow(cluster, declared, look, tmp_path, [], {"b": 1, "fill": 29})
    assert any("deletions in partition 0" in line for line in told)


def follow(
    cluster: Cluster, view: View, look: Look, home: Path, records: list[Any], rows: dict[str, int]
) -> list[str]:
    """What is told until these are the rows; each of them is built once."""
    produce(cluster, view.topic.name, records)
    with following(cluster, view, [], home) as followed:
        followed.until_state("following")
        until(lambda: look() == rows, f"{rows}", pause_s=0.01)
        assert followed.follower.status.rebuilds == 1
        return followed.told
