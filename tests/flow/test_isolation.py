"""A flow that dies: the others of its app go on, and it catches up when it is started again."""

from __future__ import annotations

import uuid
from collections import Counter
from dataclasses import dataclass

import pytest
from pyspark.sql import DataFrame

from headrace.app import App
from headrace.flow.errors import FlowFailed
from headrace.flow.writer import Writer
from tests.flow.reading import values
from tests.support.flows import FlowWorld, RunningApp
from tests.support.waiting import until


@dataclass(frozen=True)
class Order:
    order: str


def test_a_flow_that_dies_takes_no_other_with_it_and_catches_up(
    flow_world: FlowWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    mark = uuid.uuid4().hex[:8]
    app = App(f"isolated-{mark}")
    orders = app.topic(f"orders-{mark}", Order, key="order")
    outputs = [app.topic(f"{name}-{mark}", key="order") for name in ("dies", "lives")]
    for output in outputs:
        app.flow(reads=[orders], writes=output, name=f"to-{output.name}")(_copy)
    dies, lives = outputs
    commit = Writer.commit

    def fail(self: Writer) -> None:
        if dies.name in self.flow:
            raise RuntimeError("the flow dies in the middle of a batch")
        commit(self)

    def written(topic: str) -> Counter[str]:
        return Counter(row["order"] for row in values(flow_world.cluster.bootstrap, topic))

    def write(*names: str) -> Counter[str]:
        flow_world.write(orders, [Order(name) for name in names])
        return Counter(names)

    def kill_one(run: RunningApp) -> Counter[str]:
        expected = write("a", "b")
        run.derived()
        with monkeypatch.context() as patch:
            patch.setattr(Writer, "commit", fail)
            expected += write("c")
            until(lambda: run.errors, "one flow dies")
        expected += write("d", "e")
        until(lambda: written(lives.name) == expected, "the other goes on")
        assert [one.status.state for one in run.runners] == ["failed", "running"]
        assert written(dies.name) == Counter("ab")
        return expected

    everything: list[Counter[str]] = []
    flow_world.declare(app)
    with pytest.raises(FlowFailed, match="dies in the middle"), flow_world.running(app, follow=False) as run:
        everything.append(kill_one(run))
    with flow_world.running(app, follow=False) as run:
        run.derived()
    for output in outputs:
        assert written(output.name) == everything[0], output.name


def _copy(orders: DataFrame) -> DataFrame:
    return orders
