"""Apps with a flow in real time, and what is seen of them."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from headrace.app import App
from headrace.model.flow import Flow
from headrace.ops.report import Report
from headrace.ops.verify import Verifier
from headrace.views.opening import file_of, open_store
from headrace.views.store import Part
from tests.support.flows import FlowWorld, RunningApp
from tests.support.waiting import until

if TYPE_CHECKING:
    from headrace.views.position import Position

__all__ = ["NOW", "Reading", "app_with", "position", "proofs", "served", "transaction"]

NOW = datetime(2026, 1, 31, 12, tzinfo=UTC)


@dataclass(frozen=True)
class Reading:
    sensor: str
    number: int
    at: datetime
    tags: list[str]
    room: str | None = None


def app_with(
    function: Callable[[Any], Any], name: str = "fast", latency: Any = "realtime"
) -> tuple[App, Flow]:
    app = App("rt")
    readings = app.topic(
        f"{name}-readings", Reading, key="sensor", time="at", late=timedelta(seconds=1), partitions=2
    )
    out = app.topic(f"{name}-out", key="sensor", partitions=2)
    flow = app.flow(reads=[readings], writes=out, name=f"{name}-flow", latency=latency)(function)
    app.view(f"{name}-view", out)
    return app, flow


def served(world: FlowWorld, app: App) -> dict[str, tuple[Any, ...]]:
    path = file_of(app.views[0], app.name, world.home)
    if path is None or not path.exists():
        return {}
    with contextlib.closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as connection:
        try:
            rows = connection.execute(f'SELECT * FROM "{app.views[0].name}"').fetchall()
        except sqlite3.OperationalError:
            return {}
    return {row[0]: row for row in rows}


def position(world: FlowWorld, app: App) -> Position:
    store = open_store(app.views[0], app.name, world.home)
    try:
        standing = store.standing(Part.SERVING)
    finally:
        store.close()
    assert standing is not None
    return standing.position


def proofs(world: FlowWorld, run: RunningApp) -> list[Report]:
    where = (world.spark, world.cluster, run.app, world.settings())
    with Verifier(*where, run.compiled, run.schemas) as verifier:
        found = list(verifier.all())
    assert all(isinstance(one, Report) for one in found), found
    return [one for one in found if isinstance(one, Report)]


def transaction(
    world: FlowWorld, topic: str, records: Sequence[tuple[bytes | None, bytes | None]], *, commit: bool = True
) -> None:
    """Into the first partition; returns when its end is visible, which the answer to a client does not promise."""
    behind = world.cluster.ends(topic)[0] + len(records) + 1
    producer = world.cluster.producer({"transactional.id": f"{topic}-writer"})
    producer.init_transactions(30)
    producer.begin_transaction()
    for key, value in records:
        producer.produce(topic, value, key, partition=0)
    assert producer.flush(30) == 0
    (producer.commit_transaction if commit else producer.abort_transaction)(30)
    until(lambda: world.cluster.ends(topic)[0] >= behind, "the end of the transaction")
