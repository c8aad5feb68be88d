"""A stopped flow leaves no objects behind, in Python or in the JVM."""

from __future__ import annotations

import gc
import json
import threading
import uuid
from dataclasses import dataclass

import pytest
from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery

from faults.flows.world import FlowWorld
from faults.wait import until
from headrace.app import App
from headrace.flow.engine.micro_batch import MicroBatchRun
from headrace.model.declarations import Flow, Topic
from tests.flow.topic_contents import committed


@dataclass(frozen=True)
class Click:
    click_id: str


@dataclass(frozen=True)
class CopyApp:
    app: App
    clicks: Topic
    copy: Flow


@pytest.fixture
def copy_app(flow_world: FlowWorld) -> CopyApp:
    mark = uuid.uuid4().hex[:8]
    app = App(f"away-{mark}")
    clicks = app.topic(f"clicks-{mark}", Click, key="click_id")

    @app.flow(reads=[clicks], writes=app.topic(f"copy-{mark}", key="click_id"), name=f"copy-{mark}")
    def copy(clicks: DataFrame) -> DataFrame:
        return clicks

    flow_world.declare(app)
    return CopyApp(app, clicks, copy)


def test_a_stopped_flow_is_garbage_collected(flow_world: FlowWorld, copy_app: CopyApp) -> None:
    def remaining_runs() -> list[MicroBatchRun]:
        """Collect garbage in the JVM, which releases Python objects, and in Python; return the remaining objects."""
        flow_world.spark._jvm.System.gc()  # type: ignore[union-attr]
        gc.collect()
        return [
            item
            for item in gc.get_objects()
            if isinstance(item, MicroBatchRun) and item._flow is copy_app.copy
        ]

    for number in range(2):
        with flow_world.running(copy_app.app, follow=False) as run:
            flow_world.write(copy_app.clicks, [Click(f"c{number}")])
            run.wait_until_derived()
            assert len(remaining_runs()) >= 1
    until(lambda: not remaining_runs(), "all objects are collected", timeout_s=240, pause_s=0.3)


def test_a_batch_that_begins_during_a_stop_fails_and_is_derived_after_the_restart(
    flow_world: FlowWorld, copy_app: CopyApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    has_begun = threading.Event()
    batch, stop = MicroBatchRun._batch, StreamingQuery.stop

    def begin(self: MicroBatchRun, frame: DataFrame, number: int) -> None:
        has_begun.set()
        batch(self, frame, number)

    def stop_late(query: StreamingQuery) -> None:
        has_begun.clear()
        flow_world.write(copy_app.clicks, [Click("late")])
        assert has_begun.wait(60)
        stop(query)

    monkeypatch.setattr(MicroBatchRun, "_batch", begin)
    flow_world.write(copy_app.clicks, [Click("soon")])
    with monkeypatch.context() as patch:
        patch.setattr(StreamingQuery, "stop", stop_late)
        with flow_world.running(copy_app.app, follow=False) as run:
            run.wait_until_derived()
    assert not run.is_alive
    assert not run.is_all_derived()
    with flow_world.running(copy_app.app, follow=False) as run:
        run.wait_until_derived()
    rows = committed(flow_world.cluster.bootstrap, copy_app.copy.writes.name)
    assert [json.loads(row.value() or b"")["click_id"] for row in rows] == ["soon", "late"]
