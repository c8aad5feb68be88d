"""Apps with a flow in real time, and readers of their output."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from faults.flows.world import FlowWorld, RunningApp
from faults.wait import until
from headrace.app import App
from headrace.model.declarations import Flow
from headrace.ops.verify.report import Report
from headrace.ops.verify.verifier import Verifier
from headrace.stores.registry import file_of, open_writer
from headrace.stores.writer import Part

if TYPE_CHECKING:
    from headrace.stores.position import Position

__all__ = ["NOW", "Measurement", "app_with", "position", "proofs", "served", "transaction"]

NOW = datetime(2026, 1, 31, 12, tzinfo=UTC)


@dataclass(frozen=True)
class Measurement:
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
        f"{name}-readings", Measurement, key="sensor", time="at", late=timedelta(seconds=1), partitions=2
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
    store = open_writer(app.views[0], app.name, world.home)
    try:
        state = store.state(Part.SERVING)
    finally:
        store.close()
    assert state is not None
    return state.position


def proofs(world: FlowWorld, run: RunningApp) -> list[Report]:
    where = (world.spark, world.cluster, run.app, world.settings())
    with Verifier(*where, run.compiled, run.schemas) as verifier:
        found = list(verifier.all())
    assert all(isinstance(report, Report) for report in found), found
    return [report for report in found if isinstance(report, Report)]


def transaction(
    world: FlowWorld, topic: str, records: Sequence[tuple[bytes | None, bytes | None]], *, commit: bool = True
) -> None:
    """Write a transaction to the first partition, and return when its end is visible. The response to the commit may
    come earlier.
    """
    behind = world.cluster.ends(topic)[0] + len(records) + 1
    producer = world.cluster.producer({"transactional.id": f"{topic}-writer"})
    producer.init_transactions(30)
    producer.begin_transaction()
    for key, value in records:
        producer.produce(topic, value, key, partition=0)
    assert producer.flush(30) == 0
    (producer.commit_transaction if commit else producer.abort_transaction)(30)
    until(lambda: world.cluster.ends(topic)[0] >= behind, "the end of the transaction")
