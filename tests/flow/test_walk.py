"""A reader opens few files to follow a micro-batch from Spark's callback to its commit."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import pytest
from pyspark.sql import DataFrame

from faults.flows.world import FlowWorld
from headrace.app import App
from headrace.flow.engine.micro_batch import MicroBatchRun
from tests.unit.repository.walks import documented_files, trace_files

BATCH_FILES_MAX = 11
"""The maximum number of files. Lower it when the operation needs fewer files; never raise it."""


@dataclass(frozen=True)
class Order:
    order: str
    at: datetime


def _copy(orders: DataFrame) -> DataFrame:
    return orders.select("order")


def test_a_micro_batch_passes_few_files(flow_world: FlowWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    mark = uuid.uuid4().hex[:8]
    app = App(f"walk-{mark}")
    orders = app.topic(f"orders-{mark}", Order, key="order", time="at", late=timedelta(seconds=1))
    app.flow(reads=[orders], writes=app.topic(f"copies-{mark}", key="order"), name=f"copy-{mark}")(_copy)
    walks: list[set[str]] = []
    batch = MicroBatchRun._batch

    def traced_batch(self: MicroBatchRun, frame: DataFrame, number: int) -> None:
        with trace_files() as files:
            batch(self, frame, number)
        walks.append(set(files))

    monkeypatch.setattr(MicroBatchRun, "_batch", traced_batch)
    with flow_world.running(app, follow=False) as run:
        for minute in range(3):
            at = datetime(2026, 1, 31, 12, minute, tzinfo=UTC)
            flow_world.write(orders, [Order(f"order {minute}", at)])
            run.wait_until_derived()
    # The first batches also create objects that later ones use, and Spark starts with a batch without input.
    committed = [walk for walk in walks if "flow/commit.py" in walk]
    assert len(committed) >= 2
    walk = documented_files("batch")
    assert len(walk) <= BATCH_FILES_MAX
    assert sorted(committed[-1]) == sorted(walk)
