"""A flow that fails: the others of its app continue, and it catches up after a restart."""

from __future__ import annotations

import uuid
from collections import Counter
from dataclasses import dataclass

import pytest
from pyspark.sql import DataFrame

from faults.flows.world import FlowWorld, RunningApp
from faults.wait import until
from headrace.app import App
from headrace.client.transactional_writer import TransactionalWriter
from headrace.flow.errors import FlowFailed
from tests.flow.topic_contents import values


@dataclass(frozen=True)
class Order:
    order: str


def test_a_failed_flow_stops_no_other_flow_and_catches_up_after_a_restart(
    flow_world: FlowWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    mark = uuid.uuid4().hex[:8]
    app = App(f"isolated-{mark}")
    orders = app.topic(f"orders-{mark}", Order, key="order")
    outputs = [app.topic(f"{name}-{mark}", key="order") for name in ("failing", "healthy")]
    for output in outputs:
        app.flow(reads=[orders], writes=output, name=f"to-{output.name}")(_copy)
    failing, healthy = outputs
    commit = TransactionalWriter.commit

    def fail(self: TransactionalWriter) -> None:
        if failing.name in self.id:
            raise RuntimeError("the flow fails in the middle of a batch")
        commit(self)

    def orders_in(topic: str) -> Counter[str]:
        return Counter(row["order"] for row in values(flow_world.cluster.bootstrap, topic))

    def write(*names: str) -> Counter[str]:
        flow_world.write(orders, [Order(name) for name in names])
        return Counter(names)

    def fail_one_flow(run: RunningApp) -> Counter[str]:
        expected = write("a", "b")
        run.wait_until_derived()
        with monkeypatch.context() as patch:
            patch.setattr(TransactionalWriter, "commit", fail)
            expected += write("c")
            until(lambda: run.errors, "one flow fails")
        expected += write("d", "e")
        until(lambda: orders_in(healthy.name) == expected, "the other flow continues")
        assert [runner.status.state for runner in run.runners] == ["failed", "running"]
        assert orders_in(failing.name) == Counter("ab")
        return expected

    everything: list[Counter[str]] = []
    flow_world.declare(app)
    with pytest.raises(FlowFailed, match="fails in the middle"), flow_world.running(app, follow=False) as run:
        everything.append(fail_one_flow(run))
    with flow_world.running(app, follow=False) as run:
        run.wait_until_derived()
    for output in outputs:
        assert orders_in(output.name) == everything[0], output.name


def _copy(orders: DataFrame) -> DataFrame:
    return orders
