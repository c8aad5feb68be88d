"""A flow that has stopped leaves nothing behind: in Python, in the JVM, or between them."""

from __future__ import annotations

import gc
import json
import threading
import uuid
from dataclasses import dataclass

import pytest
from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery

from headrace.app import App
from headrace.flow.running import Running
from headrace.model.flow import Flow
from headrace.model.topic import Topic
from tests.flow.reading import committed
from tests.support.flows import FlowWorld
from tests.support.waiting import until


@dataclass(frozen=True)
class Click:
    click_id: str


@dataclass(frozen=True)
class Copying:
    app: App
    clicks: Topic
    copy: Flow


@pytest.fixture
def copying(flow_world: FlowWorld) -> Copying:
    mark = uuid.uuid4().hex[:8]
    app = App(f"away-{mark}")
    clicks = app.topic(f"clicks-{mark}", Click, key="click_id")

    @app.flow(reads=[clicks], writes=app.topic(f"copy-{mark}", key="click_id"), name=f"copy-{mark}")
    def copy(clicks: DataFrame) -> DataFrame:
        return clicks

    flow_world.declare(app)
    return Copying(app, clicks, copy)


def test_a_flow_that_was_stopped_is_cleared_away(flow_world: FlowWorld, copying: Copying) -> None:
    def left() -> list[Running]:
        """Both collectors run: the JVM's, which tells Python what it has let go of, and Python's."""
        flow_world.spark._jvm.System.gc()  # type: ignore[union-attr]
        gc.collect()
        return [one for one in gc.get_objects() if isinstance(one, Running) and one._flow is copying.copy]

    for number in range(2):
        with flow_world.running(copying.app, follow=False) as run:
            flow_world.write(copying.clicks, [Click(f"c{number}")])
            run.derived()
            assert len(left()) >= 1
    until(lambda: not left(), "all of it is cleared away", timeout_s=240, pause_s=0.3)


def test_a_batch_that_begins_while_its_flow_stops_does_not_hold_it_up_and_is_derived_next(
    flow_world: FlowWorld, copying: Copying, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = threading.Event()
    batch, stop = Running._batch, StreamingQuery.stop

    def begin(self: Running, frame: DataFrame, number: int) -> None:
        begun.set()
        batch(self, frame, number)

    def stop_late(query: StreamingQuery) -> None:
        begun.clear()
        flow_world.write(copying.clicks, [Click("late")])
        assert begun.wait(60)
        stop(query)

    monkeypatch.setattr(Running, "_batch", begin)
    flow_world.write(copying.clicks, [Click("soon")])
    with monkeypatch.context() as patch:
        patch.setattr(StreamingQuery, "stop", stop_late)
        with flow_world.running(copying.app, follow=False) as run:
            run.derived()
    assert not run.is_alive
    assert not run.is_derived()
    with flow_world.running(copying.app, follow=False) as run:
        run.derived()
    rows = committed(flow_world.cluster.bootstrap, copying.copy.writes.name)
    assert [json.loads(one.value() or b"")["click_id"] for one in rows] == ["soon", "late"]
