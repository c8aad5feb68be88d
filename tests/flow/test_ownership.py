"""Who writes a flow: a transaction that ran out of time is not a successor, and a successor is named."""

from __future__ import annotations

import os
import socket
import threading
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from pyspark.sql import DataFrame

from headrace.app import App
from headrace.client.cluster import Cluster
from headrace.client.errors import LogError
from headrace.client.progress_log import batches, current, current_driver, wait_until_decided
from headrace.flow.errors import FlowFenced, FlowNameTaken, ProducerFenced, TransactionTimedOut
from headrace.flow.opening import open_flow
from headrace.flow.options import FlowOptions
from headrace.flow.ownership import Ownership
from headrace.flow.runner import transactional_id
from headrace.flow.writer import Side, Writer
from headrace.model.flow import Flow
from tests.flow.reading import values
from tests.support.flows import FlowWorld, RunningApp
from tests.support.waiting import until

TIMEOUT_MS = 1_000


@dataclass(frozen=True)
class Note:
    note: str


class Copy:
    """A flow that copies notes."""

    def __init__(self, app: str = "", flow: str = "") -> None:
        mark = uuid.uuid4().hex[:8]
        self.app = App(app or f"copy-{mark}")
        self.notes = self.app.topic(f"notes-{mark}", Note, key="note")
        self.copies = self.app.topic(f"copies-{mark}", key="note")

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
        return [one.batch for one in batches(world.cluster, self.copy.progress_topic, 1)]


@pytest.fixture
def before_commit(monkeypatch: pytest.MonkeyPatch) -> list[Callable[[], None]]:
    """What happens, once each, when a batch is about to commit: all of it is in the log. Records that begin a
    generation or name an owner commit as they do.
    """
    events: list[Callable[[], None]] = []
    commit, alone = Writer.commit, Writer.commit_alone
    opening = threading.local()

    def commit_alone(self: Writer, cluster: Cluster, record: Side) -> int:
        opening.now = True
        try:
            return alone(self, cluster, record)
        finally:
            opening.now = False

    def delayed(self: Writer) -> None:
        if events and not getattr(opening, "now", False):
            self.flush()
            events.pop(0)()
        commit(self)

    monkeypatch.setattr(Writer, "commit_alone", commit_alone)
    monkeypatch.setattr(Writer, "commit", delayed)
    return events


def until_given_up(world: FlowWorld, flow: Flow) -> Callable[[], None]:
    """Waits until the log has aborted the transaction that is open in the flow's progress."""

    def wait() -> None:
        topic = flow.progress_topic
        until(
            lambda: world.cluster.ends(topic) == world.cluster.ends(topic, committed=False),
            "the log gives the transaction up",
        )

    return wait


def test_a_transaction_that_ran_out_of_time_is_opened_again_and_the_flow_goes_on_in_smaller_batches(
    flow_world: FlowWorld, before_commit: list[Any]
) -> None:
    copy = Copy()
    copy.write(flow_world, *"abcdefgh")
    before_commit.append(until_given_up(flow_world, copy.copy))
    with flow_world.running(copy.app, follow=False, max_rows=8, transaction_timeout_ms=TIMEOUT_MS) as run:
        run.derived()
        failure = run.runners[0].failure
        copy.write(flow_world, "i")
        run.derived()
        assert run.runners[0].status.state == "running"
    assert failure is not None
    assert isinstance(failure.error, ProducerFenced)
    assert "opened again" in failure.error.message
    assert sorted(copy.written(flow_world)) == list("abcdefghi")
    # What took too long at once is derived in smaller batches.
    assert copy.numbers(flow_world) == [0, 1, 2, 3, 4]


def test_a_batch_that_never_fits_its_transaction_stops_the_flow_and_names_the_setting(
    flow_world: FlowWorld, before_commit: list[Any]
) -> None:
    copy = Copy()
    copy.write(flow_world, "a")
    before_commit += [until_given_up(flow_world, copy.copy)] * 5
    with (
        pytest.raises(TransactionTimedOut) as stopped,
        flow_world.running(copy.app, follow=False, transaction_timeout_ms=TIMEOUT_MS) as run,
    ):
        until(lambda: run.errors, "the flow stops")
    assert "3 times" in stopped.value.message
    assert "transaction.timeout.ms is 1000" in stopped.value.message
    assert "flow.transaction_timeout_ms" in stopped.value.hint
    assert copy.written(flow_world) == []


def test_a_driver_that_was_replaced_is_refused_and_names_its_successor_before_that_has_written_a_batch(
    flow_world: FlowWorld, before_commit: list[Any]
) -> None:
    copy = Copy()
    copy.write(flow_world, "a")
    successor = Ownership(flow_world.cluster, copy.copy, TIMEOUT_MS)

    def rival() -> Writer:
        return Writer(flow_world.cluster, copy.copy.name, transactional_id(copy.copy))

    def begin_and_fail() -> None:
        """As one does whose function was changed: it never owns the flow."""
        rival().close()

    def take_over(run: RunningApp) -> None:
        writer, options = rival(), FlowOptions.of(flow_world.settings())
        open_flow(flow_world.spark, flow_world.cluster, copy.app, run.compiled[0], writer, options, successor)
        writer.close()

    def replace(run: RunningApp) -> None:
        run.derived()
        assert copy.written(flow_world) == ["a"]
        before_commit.append(lambda: take_over(run))
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
        run.derived()
    assert copy.written(flow_world) == ["a", "b"]


def test_two_apps_with_a_flow_of_one_name_on_a_log_are_told_apart(flow_world: FlowWorld) -> None:
    first = Copy()
    first.write(flow_world, "a")
    with flow_world.running(first.app, follow=False) as run:
        run.derived()
    second = Copy(flow=first.copy.name)
    with pytest.raises(FlowNameTaken) as refused, flow_world.running(second.app, follow=False) as run:
        until(lambda: run.errors, "the flow stops")
    assert first.app.name in refused.value.message
    assert second.app.name in refused.value.message
    assert "another name" in refused.value.hint
    assert flow_world.cluster.topic(second.copies.name) is None


def test_of_two_apps_that_begin_a_flow_of_one_name_at_one_moment_the_log_lets_one_write(
    flow_world: FlowWorld,
) -> None:
    first = Copy()
    second = Copy(flow=first.copy.name)
    second.write(flow_world, "a")
    # It has looked, and there was no such flow.
    writer = Writer(flow_world.cluster, first.copy.name, transactional_id(first.copy))
    with flow_world.running(second.app, follow=False) as run:
        run.derived()
        with pytest.raises(ProducerFenced):
            writer.commit_alone(flow_world.cluster, Side(first.copy.progress_topic, b"generation", b"{}"))
        second.write(flow_world, "b")
        run.derived()
    writer.close()
    assert sorted(second.written(flow_world)) == ["a", "b"]


def test_closing_a_refused_producer_raises_nothing(flow_world: FlowWorld) -> None:
    name = f"refused-{uuid.uuid4().hex[:8]}"
    flow_world.cluster.ensure_topic(name, 1)
    first = Writer(flow_world.cluster, name, name)
    first.begin()
    first.rows(name, ["k"], ["v"])
    first.flush()
    Writer(flow_world.cluster, name, name).close()
    with pytest.raises(ProducerFenced):
        first.commit()
    first.close()


def test_whoever_opens_a_flow_waits_for_what_is_decided_and_not_seen_yet(flow_world: FlowWorld) -> None:
    name = f"decided-{uuid.uuid4().hex[:8]}"
    flow_world.cluster.ensure_topic(name, 1)
    writer = Writer(flow_world.cluster, name, name)
    writer.begin()
    writer.rows(name, ["k"], ["v"])
    writer.flush()
    with pytest.raises(LogError) as waited:
        wait_until_decided(flow_world.cluster, name, timeout_s=0.05)
    assert waited.value.retriable
    writer.commit()
    wait_until_decided(flow_world.cluster, name)
    assert flow_world.cluster.ends(name) == {0: 2}
    writer.close()
