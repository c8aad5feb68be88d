"""The owner of a flow: a transaction timeout is not a takeover, and after a takeover the error names the new owner."""

from __future__ import annotations

import os
import socket
import threading
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from pyspark.sql import DataFrame

from faults.flows.world import FlowWorld, RunningApp
from faults.wait import until
from headrace.app import App
from headrace.client.errors import LogError
from headrace.client.progress import batches, current, current_driver, wait_until_decided
from headrace.client.transactional_writer import OutgoingRecord, TransactionalWriter, WriterRefused
from headrace.flow.context import FlowContext, FlowOptions
from headrace.flow.errors import FlowFenced, ProducerFenced, TopicTaken, TransactionTimedOut
from headrace.flow.flow_state import open_flow
from headrace.flow.generation_choice import choose_generation
from headrace.flow.ownership import Ownership, open_writer
from headrace.model.declarations import Flow
from tests.flow.topic_contents import values

TIMEOUT_MS = 1_000


@dataclass(frozen=True)
class Note:
    note: str


class Copy:
    """A flow that copies notes."""

    def __init__(self, app: str = "", flow: str = "", copies: str = "") -> None:
        mark = uuid.uuid4().hex[:8]
        self.app = App(app or f"copy-{mark}")
        self.notes = self.app.topic(f"notes-{mark}", Note, key="note")
        self.copies = self.app.topic(copies or f"copies-{mark}", key="note")

        @self.app.flow(reads=[self.notes], writes=self.copies, name=flow or f"copy-{mark}")
        def copy(notes: DataFrame) -> DataFrame:
            return notes

        self.copy: Flow = copy

    def write(self, world: FlowWorld, *names: str) -> None:
        world.declare(self.app)
        world.write(self.notes, [Note(name) for name in names])

    def written(self, world: FlowWorld) -> list[str]:
        return [row["note"] for row in values(world.cluster.bootstrap, self.copies.name)]

    def numbers(self, world: FlowWorld) -> list[int]:
        return [batch.batch for batch in batches(world.cluster, self.copy.progress_topic, 1)]


@pytest.fixture
def before_commit(monkeypatch: pytest.MonkeyPatch) -> list[Callable[[], None]]:
    """Run each action once when a batch is about to commit and all its records are in the log. Transactions that begin
    a generation or name an owner are not affected.
    """
    events: list[Callable[[], None]] = []
    commit, commit_alone = TransactionalWriter.commit, TransactionalWriter.commit_record
    opening = threading.local()

    def commit_record(
        self: TransactionalWriter, record: OutgoingRecord, others: Sequence[OutgoingRecord] = ()
    ) -> int:
        opening.now = True
        try:
            return commit_alone(self, record, others)
        finally:
            opening.now = False

    def run_action_and_commit(self: TransactionalWriter) -> None:
        if events and not getattr(opening, "now", False):
            self.flush()
            events.pop(0)()
        commit(self)

    monkeypatch.setattr(TransactionalWriter, "commit_record", commit_record)
    monkeypatch.setattr(TransactionalWriter, "commit", run_action_and_commit)
    return events


def until_aborted(world: FlowWorld, flow: Flow) -> Callable[[], None]:
    """Wait until the log has aborted the open transaction in the flow's progress topic."""

    def wait() -> None:
        topic = flow.progress_topic
        until(
            lambda: world.cluster.ends(topic) == world.cluster.ends(topic, committed=False),
            "the log aborts the transaction",
        )

    return wait


def test_after_a_transaction_timeout_the_flow_continues_in_smaller_batches(
    flow_world: FlowWorld, before_commit: list[Any]
) -> None:
    copy = Copy()
    copy.write(flow_world, *"abcdefgh")
    before_commit.append(until_aborted(flow_world, copy.copy))
    with flow_world.running(copy.app, follow=False, max_rows=8, transaction_timeout_ms=TIMEOUT_MS) as run:
        run.wait_until_derived()
        failure = run.runners[0].failure
        copy.write(flow_world, "i")
        run.wait_until_derived()
        assert run.runners[0].status.state == "running"
    assert failure is not None
    assert isinstance(failure.error, ProducerFenced)
    assert "reopening the flow" in failure.error.message
    assert sorted(copy.written(flow_world)) == list("abcdefghi")
    # The batch that took too long is now derived in smaller batches.
    assert copy.numbers(flow_world) == [0, 1, 2, 3, 4]


def test_a_batch_that_always_times_out_stops_the_flow_and_names_the_setting(
    flow_world: FlowWorld, before_commit: list[Any]
) -> None:
    copy = Copy()
    copy.write(flow_world, "a")
    before_commit += [until_aborted(flow_world, copy.copy)] * 5
    with (
        pytest.raises(TransactionTimedOut) as stopped,
        flow_world.running(copy.app, follow=False, transaction_timeout_ms=TIMEOUT_MS) as run,
    ):
        until(lambda: run.errors, "the flow stops")
    assert "3 times" in stopped.value.message
    assert "transaction.timeout.ms is 1000" in stopped.value.message
    assert "flow.transaction_timeout_ms" in stopped.value.hint
    assert copy.written(flow_world) == []


def take_over(world: FlowWorld, copy: Copy, run: RunningApp, successor: Ownership) -> None:
    writer, options = open_writer(world.cluster, copy.copy), FlowOptions.of(world.settings())
    context = FlowContext(world.spark, world.cluster, copy.app, run.compiled[0], {}, options)
    open_flow(context, writer, successor, choose_generation(context))
    writer.close()


def test_an_idle_flow_stops_when_another_driver_opens_it(flow_world: FlowWorld) -> None:
    copy = Copy()
    copy.write(flow_world, "a")

    def replace(run: RunningApp) -> None:
        run.wait_until_derived()
        take_over(flow_world, copy, run, Ownership(flow_world.cluster, copy.copy, TIMEOUT_MS))
        until(lambda: run.errors, "the flow stops")

    with pytest.raises(FlowFenced) as fenced, flow_world.running(copy.app, follow=False) as run:
        replace(run)
    assert f"process {os.getpid()} on {socket.gethostname()}, at " in fenced.value.message
    assert "stop one of the two" in fenced.value.hint
    assert copy.written(flow_world) == ["a"]


def test_a_replaced_driver_is_refused_and_names_its_successor(
    flow_world: FlowWorld, before_commit: list[Any]
) -> None:
    copy = Copy()
    copy.write(flow_world, "a")
    successor = Ownership(flow_world.cluster, copy.copy, TIMEOUT_MS)

    def begin_and_fail() -> None:
        """Start a driver with a changed function. It fails, and never owns the flow."""
        open_writer(flow_world.cluster, copy.copy).close()

    def replace(run: RunningApp) -> None:
        run.wait_until_derived()
        assert copy.written(flow_world) == ["a"]
        before_commit.append(lambda: take_over(flow_world, copy, run, successor))
        copy.write(flow_world, "b")
        until(lambda: run.errors, "the flow stops")

    before_commit.append(begin_and_fail)
    with pytest.raises(FlowFenced) as fenced, flow_world.running(copy.app, follow=False) as run:
        replace(run)
    assert f"process {os.getpid()} on {socket.gethostname()}, at " in fenced.value.message
    progress = copy.copy.progress_topic
    found = current(flow_world.cluster, progress)
    assert found is not None
    assert found.last is not None
    assert found.last.batch == 0
    driver = current_driver(flow_world.cluster, progress)
    assert driver is not None
    assert driver.id == successor.id
    with flow_world.running(copy.app, follow=False) as run:
        run.wait_until_derived()
    assert copy.written(flow_world) == ["a", "b"]


def test_a_topic_that_another_flow_derives_is_refused(flow_world: FlowWorld) -> None:
    first = Copy()
    first.write(flow_world, "a")
    with flow_world.running(first.app, follow=False) as run:
        run.wait_until_derived()
        others = [Copy(copies=first.copies.name), Copy(app=first.app.name, copies=first.copies.name)]
        for other in others:
            other.write(flow_world, "b")
            with (
                pytest.raises(TopicTaken) as refused,
                flow_world.running(other.app, follow=False) as other_run,
            ):
                until(lambda: other_run.errors, "the flow stops")
            assert f"derived by flow {first.copy.name}" in refused.value.message
        assert first.app.name in refused.value.message or first.copy.name in refused.value.hint
        # The owner was not fenced.
        first.write(flow_world, "c")
        run.wait_until_derived()
    assert sorted(first.written(flow_world)) == ["a", "c"]


def test_two_apps_may_have_a_flow_of_the_same_name(flow_world: FlowWorld) -> None:
    first = Copy()
    second = Copy(flow=first.copy.name)
    first.write(flow_world, "a")
    second.write(flow_world, "b")
    for copy in (first, second):
        with flow_world.running(copy.app, follow=False) as run:
            run.wait_until_derived()
    assert (first.written(flow_world), second.written(flow_world)) == (["a"], ["b"])


def test_only_one_of_two_flows_that_start_to_derive_a_topic_writes(flow_world: FlowWorld) -> None:
    first = Copy()
    second = Copy(copies=first.copies.name)
    second.write(flow_world, "a")
    # The driver has checked that no flow derives the topic.
    writer = open_writer(flow_world.cluster, first.copy)
    with flow_world.running(second.app, follow=False) as run:
        run.wait_until_derived()
        with pytest.raises(WriterRefused):
            writer.commit_record(OutgoingRecord(first.copy.progress_topic, b"generation", b"{}"))
        second.write(flow_world, "b")
        run.wait_until_derived()
    writer.close()
    assert sorted(second.written(flow_world)) == ["a", "b"]


def test_closing_a_refused_producer_raises_nothing(flow_world: FlowWorld) -> None:
    name = f"refused-{uuid.uuid4().hex[:8]}"
    flow_world.cluster.ensure_topic(name, 1)
    first = TransactionalWriter(flow_world.cluster, name, name)
    first.begin()
    first.send_rows(name, ["k"], ["v"])
    first.flush()
    TransactionalWriter(flow_world.cluster, name, name).close()
    with pytest.raises(WriterRefused):
        first.commit()
    first.close()


def test_opening_a_flow_waits_for_decided_transactions_to_become_visible(flow_world: FlowWorld) -> None:
    name = f"decided-{uuid.uuid4().hex[:8]}"
    flow_world.cluster.ensure_topic(name, 1)
    writer = TransactionalWriter(flow_world.cluster, name, name)
    writer.begin()
    writer.send_rows(name, ["k"], ["v"])
    writer.flush()
    with pytest.raises(LogError) as waited:
        wait_until_decided(flow_world.cluster, name, timeout_s=0.05)
    assert waited.value.retriable
    writer.commit()
    wait_until_decided(flow_world.cluster, name)
    assert flow_world.cluster.ends(name) == {0: 2}
    writer.close()
