"""If Spark planned a batch that was never committed to the log, the next run plans it again, with the new limits."""

from __future__ import annotations

import shutil
import uuid
from collections import Counter
from dataclasses import dataclass

import pytest
from confluent_kafka.admin import AdminClient, NewPartitions  # type: ignore[attr-defined]
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from faults.flows.world import FlowWorld, RunningApp
from faults.wait import until
from headrace.app import App
from headrace.client.progress import batches
from headrace.client.transactional_writer import TransactionalWriter
from headrace.flow.errors import FlowFailed
from headrace.model.declarations import Flow
from headrace.model.progress import Batch
from tests.flow.topic_contents import last_values, values


@dataclass(frozen=True)
class Step:
    step: str
    walker: str
    length: int


class Walks:
    """A flow without state and one with state, which read the same steps."""

    def __init__(self, *, keeps: bool, sums: bool) -> None:
        mark = uuid.uuid4().hex[:8]
        self.app = app = App(f"walks-{mark}")
        self.steps = app.topic(f"steps-{mark}", Step, partitions=2)
        self.kept = app.topic(f"kept-{mark}", key="step")
        self.sums = app.topic(f"sums-{mark}", key="walker")
        self.sent: list[Step] = []
        self.flows: list[Flow] = []
        if keeps:
            self.flows.append(app.flow(reads=[self.steps], writes=self.kept, name=f"keep-{mark}")(_keep))
        if sums:
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
        rows = last_values(world.cluster.bootstrap, self.sums.name)
        assert {walker: row["length"] for walker, row in rows.items()} == dict(lengths)

    def batches(self, world: FlowWorld, flow: Flow) -> list[Batch]:
        return list(batches(world.cluster, flow.progress_topic, 1))


def _keep(steps: DataFrame) -> DataFrame:
    return steps


def _sum(steps: DataFrame) -> DataFrame:
    return steps.groupBy("walker").agg(F.sum("length").alias("length"))


def fail_a_batch(world: FlowWorld, walks: Walks, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the driver fail in a batch of ``count`` steps, after its rows were written but not committed."""

    def fail(self: TransactionalWriter) -> None:
        raise RuntimeError("the driver fails before it commits")

    def fail_batch(run: RunningApp) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(TransactionalWriter, "commit", fail)
            walks.write(world, count)
            until(lambda: run.errors, "the batch fails")

    with pytest.raises(FlowFailed), world.running(walks.app, follow=False) as run:
        fail_batch(run)


def test_a_stateless_flow_without_its_checkpoint_retries_a_failed_batch_in_smaller_batches(
    flow_world: FlowWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    walks = Walks(keeps=True, sums=False)
    [keep] = walks.flows
    walks.write(flow_world, 5)
    with flow_world.running(walks.app, follow=False) as run:
        run.wait_until_derived()
    fail_a_batch(flow_world, walks, 30, monkeypatch)
    admin = AdminClient({"bootstrap.servers": flow_world.cluster.bootstrap})
    admin.create_partitions([NewPartitions(walks.steps.name, 3)])[walks.steps.name].result(30)
    walks.write(flow_world, 4, partition=2)
    shutil.rmtree(flow_world.settings().checkpoints / keep.name)
    with flow_world.running(walks.app, max_rows=10, follow=False) as run:
        run.wait_until_derived()
    walks.expect_each_step_once(flow_world)
    found = walks.batches(flow_world, keep)
    assert [batch.batch for batch in found] == list(range(len(found)))
    assert max(batch.rows_in for batch in found[1:]) <= 10
    [checkpoint] = (flow_world.settings().checkpoints / keep.name).iterdir()
    assert checkpoint.name.startswith("run-")


def test_state_is_correct_after_a_failed_batch_is_planned_again_in_smaller_batches(
    flow_world: FlowWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    walks = Walks(keeps=False, sums=True)
    [summed] = walks.flows
    walks.write(flow_world, 5)
    with flow_world.running(walks.app, follow=False) as run:
        run.wait_until_derived()
    fail_a_batch(flow_world, walks, 30, monkeypatch)
    with flow_world.running(walks.app, max_rows=10, follow=False) as run:
        run.wait_until_derived()
    walks.expect_sums(flow_world)
    assert max(batch.rows_in for batch in walks.batches(flow_world, summed)[1:]) <= 10
    # The next run reads its state from the files.
    walks.write(flow_world, 5)
    with flow_world.running(walks.app, follow=False) as run:
        run.wait_until_derived()
    walks.expect_sums(flow_world)
