"""A flow that has stopped leaves nothing behind: in Python, in the JVM, or between them."""

from __future__ import annotations

import gc
import uuid
from dataclasses import dataclass

from pyspark.sql import DataFrame

from headrace.app import App
from headrace.flow.running import Running
from tests.support.flows import FlowWorld
from tests.support.waiting import until


@dataclass(frozen=True)
class Click:
    click_id: str


def test_a_flow_that_was_stopped_is_cleared_away(flow_world: FlowWorld) -> None:
    mark = uuid.uuid4().hex[:8]
    app = App(f"away-{mark}")
    clicks = app.topic(f"clicks-{mark}", Click, key="click_id")

    @app.flow(reads=[clicks], writes=app.topic(f"copy-{mark}", key="click_id"), name=f"copy-{mark}")
    def copy(clicks: DataFrame) -> DataFrame:
        return clicks

    def left() -> list[Running]:
        """Both collectors run: the JVM's, which tells Python what it has let go of, and Python's."""
        flow_world.spark._jvm.System.gc()  # type: ignore[union-attr]
        gc.collect()
        return [one for one in gc.get_objects() if isinstance(one, Running) and one._flow is copy]

    flow_world.declare(app)
    for number in range(2):
        with flow_world.running(app, follow=False) as run:
            flow_world.write(clicks, [Click(f"c{number}")])
            run.derived()
            assert len(left()) >= 1
    until(lambda: not left(), "all of it is cleared away", timeout_s=60, pause_s=0.3)
