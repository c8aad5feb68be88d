"""A batch that Spark has planned and the log never committed: it is planned again, by the limits of the next start."""

from __future__ import annotations

import shutil
import uuid
from collections import Counter
from dataclasses import dataclass

import pytest
from confluent_kafka.admin import AdminClient, NewPartitions  # type: ignore[attr-defined]
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from headrace.app import App
from headrace.client.progress_log import batches
from headrace.flow.errors import FlowFailed
from headrace.flow.writer import Writer
from headrace.model.flow import Flow
from headrace.model.progress import Batch
from tests.flow.reading import folded, values
from tests.support.flows import FlowWorld, RunningApp
from tests.support.waiting import until


@dataclass(frozen=True)
class Step:
    step: str
    walker: str
    length: int


class Walks:
    """A flow without state and one with state, which read the same steps."""

    def __init__(self, *, kept: bool, summed: bool) -> None:
        mark = uuid.uuid4().hex[:8]
        self.app = app = App(f"walks-{mark}")
        self.steps = app.topic(f"steps-{mark}", Step, partitions=2)
        self.kept = app.topic(f"kept-{mark}", key="step")
        self.sums = app.topic(f"sums-{mark}", key="walker")
        self.sent: list[Step] = []
        self.flows: list[Flow] = []
        if kept:
            self.flows.append(app.flow(reads=[self.steps], writes=self.kept, name=f"keep-{mark}")(_keep))
        if summed:
            name = f"sum-{mark}"
            self.flows.append(app.flow(reads=[self.steps], writes=self.sums, name=name, unbounded=True)(_sum))

    def write(self, world: FlowWorld, count: int, *, partition: int = -1) -> None:
        begin = len(self.sent)
        steps = [Step(f"s{n}", f"w{n % 5}", n) for n in range(begin, begin + count)]
        self.sent += steps
        world.declare(self.app)
        world.write(self.steps, steps, partition=partition)

    def expect_each_step_once(self, world: FlowWorld) -> None:
        found = Counter(row["step"] for row in values(world.cluster.bootstrap, self.kept.name))
        assert found == Counter(step.step for step in self.sent)

    def expect_sums(self, world: FlowWorld) -> None:
        lengths: Counter[str] = Counter()
        for step in self.sent:
            lengths[step.walker] += step.length
        rows = folded(world.cluster.bootstrap, self.sums.name)
        assert {walker: row["length"] for walker, row in rows.items()} == dict(lengths)

    def batches(self, world: FlowWorld, flow: Flow) -> list[Batch]:
        return list(batches(world.cluster, flow.progress_topic, 1))


def _keep(steps: DataFrame) -> DataFrame:
    return steps


def _sum(steps: DataFrame) -> DataFrame:
    return steps.groupBy("walker").agg(F.sum("length").alias("length"))


def fail_a_batch(world: FlowWorld, walks: Walks, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """So many steps are one batch, whose plan has run and whose rows the log has, when its driver fails."""

    def fail(self: Writer) -> None:
        raise RuntimeError("the driver fails before it commits")

    def fail_batch(run: RunningApp) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(Writer, "commit", fail)
            walks.write(world, count)
            until(lambda: run.errors, "the batch fails")

    with pytest.raises(FlowFailed), world.running(walks.app, follow=False) as run:
        fail_batch(run)


def test_a_flow_without_state_runs_in_smaller_batches_after_one_that_failed_and_without_its_checkpoint(
    flow_world: FlowWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    walks = Walks(kept=True, summed=False)
    [keep] = walks.flows
    walks.write(flow_world, 5)
    with flow_world.running(walks.app, follow=False) as run:
        run.derived()
    fail_a_batch(flow_world, walks, 30, monkeypatch)
    admin = AdminClient({"bootstrap.servers": flow_world.cluster.bootstrap})
    admin.create_partitions([NewPartitions(walks.steps.name, 3)])[walks.steps.name].result(30)
    walks.write(flow_world, 4, partition=2)
    shutil.rmtree(flow_world.settings().checkpoints / keep.name)
    with flow_world.running(walks.app, max_rows=10, follow=False) as run:
        run.derived()
    walks.expect_each_step_once(flow_world)
    found = walks.batches(flow_world, keep)
    assert [one.batch for one in found] == list(range(len(found)))
    assert max(one.rows_in for one in found[1:]) <= 10
    [checkpoint] = (flow_world.settings().checkpoints / keep.name).iterdir()
    assert checkpoint.name.startswith("run-")


def test_state_is_right_after_a_batch_that_failed_is_planned_again_in_smaller_ones(
    flow_world: FlowWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    walks = Walks(kept=False, summed=True)
    [summed] = walks.flows
    walks.write(flow_world, 5)
    with flow_world.running(walks.app, follow=False) as run:
        run.derived()
    fail_a_batch(flow_world, walks, 30, monkeypatch)
    with flow_world.running(walks.app, max_rows=10, follow=False) as run:
        run.derived()
    walks.expect_sums(flow_world)
    assert max(one.rows_in for one in walks.batches(flow_world, summed)[1:]) <= 10
    # Another run has its state from the files alone.
    walks.write(flow_world, 5)
    with flow_world.running(walks.app, follow=False) as run:
        run.derived()
    walks.expect_sums(flow_world)
