"""A flow is rebuilt beside its serving generation, switches within limits, and can switch back."""

from __future__ import annotations

import json
import sqlite3
import uuid
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import msgspec
import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from faults.committed_records import committed
from faults.flows.world import FlowWorld, RunningApp
from faults.wait import until
from headrace.app import App
from headrace.client.generations import generations_of, own_progress_topic, progress_of
from headrace.client.generations_writer import GenerationsWriter, drop_generation
from headrace.flow.switch.difference import SWITCH_HEADER
from headrace.flow.switch.operation import SwitchOperation, SwitchRefused, publish, switch_back, switch_now
from headrace.model.declarations import Flow
from headrace.model.generations import FlowGenerations
from headrace.model.store import file_of
from headrace.ops.verify.report import Report
from headrace.settings import SwitchSettings
from tests.flow.topic_contents import last_values
from tests.verify.planted_faults import verifier

pytestmark = pytest.mark.usefixtures("compiled_plans")


@dataclass(frozen=True)
class Ride:
    ride_id: str
    bike: str
    minutes: int


def _as_they_are(rides: DataFrame) -> DataFrame:
    return rides


def _in_seconds(rides: DataFrame) -> DataFrame:
    return rides.withColumn("minutes", F.col("minutes") * 60)


def _only_long(rides: DataFrame) -> DataFrame:
    return rides.where("minutes >= 5")


class Rental:
    """The versions of one app: each has another function, under the same names."""

    def __init__(self) -> None:
        self.mark = uuid.uuid4().hex[:8]
        self.sent = 0

    def version(self, derive: Callable[[DataFrame], DataFrame]) -> tuple[App, Flow]:
        app = App(f"rental-{self.mark}")
        rides = app.topic(f"rides-{self.mark}", Ride, key="ride_id")
        known = app.topic(f"known-{self.mark}", key="ride_id")

        @app.flow(reads=[rides], writes=known, name=f"know-{self.mark}")
        def know(rides: DataFrame) -> DataFrame:
            return derive(rides)

        app.view(f"known_{self.mark}", known)
        return app, know

    def write(self, world: FlowWorld, app: App, count: int) -> None:
        rides = [Ride(f"r{self.sent + n}", f"b{n % 2}", self.sent + n) for n in range(count)]
        self.sent += count
        world.declare(app)
        world.write(app.topics[0], rides)

    def minutes(self, factor: int = 1) -> dict[str, int]:
        return {f"r{number}": number * factor for number in range(self.sent)}


def serving(world: FlowWorld, flow: Flow) -> FlowGenerations:
    generations = generations_of(world.cluster, flow)
    assert generations is not None
    return generations


def read_by_a_stock_client(world: FlowWorld, flow: Flow) -> dict[str, int]:
    """The rows of the stable topic, as any Kafka client sees them."""
    rows = last_values(world.cluster.bootstrap, flow.writes.name)
    return {key: row["minutes"] for key, row in rows.items()}


def view_rows(world: FlowWorld, app: App) -> dict[str, int]:
    (view,) = app.views
    path = file_of(view, app.name, world.home)
    assert path is not None
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as store:
        return dict(store.execute(f'SELECT ride_id, minutes FROM "{view.name}"'))


def run_until_followed(world: FlowWorld, app: App) -> None:
    with world.running(app) as run:
        run.wait_until_followed()


def until_it_serves(world: FlowWorld, run: RunningApp, flow: Flow, number: int) -> None:
    until(lambda: run.errors or serving(world, flow).serving == number, f"generation {number} serves")
    assert not run.errors


def switch_headers(world: FlowWorld, topic: str) -> dict[str, bytes]:
    """The header of the switch, by key, of the records that a switch published."""
    found = {}
    for message in committed(world.cluster.bootstrap, topic):
        header = dict(message.headers() or []).get(SWITCH_HEADER)
        if header is not None:
            found[message.key().decode()] = header
    return found


def test_a_changed_flow_is_built_beside_the_serving_one_and_readers_of_the_topic_see_the_difference(
    flow_world: FlowWorld,
) -> None:
    rental = Rental()
    before, flow = rental.version(_as_they_are)
    rental.write(flow_world, before, 20)
    run_until_followed(flow_world, before)
    after, _ = rental.version(_in_seconds)
    rental.write(flow_world, after, 10)
    with flow_world.running(after, rebuild_changed=True) as run:
        until_it_serves(flow_world, run, flow, 2)
        run.wait_until_followed()
        rental.write(flow_world, after, 5)
        run.wait_until_followed()
    assert read_by_a_stock_client(flow_world, flow) == rental.minutes(60)
    assert view_rows(flow_world, after) == rental.minutes(60)
    with verifier(run) as verification:
        proof = verification.flow(flow)
        assert proof.proven, proof.lines()
        assert any("has the rows of generation 2: 35 keys" in note for note in proof.notes)
        # A stock reader would read this row.
        flow_world.write(flow.writes, [(b"r7", b"planted")])
        proof = verification.flow(flow)
    assert [(found.topic, found.kind, found.key) for found in proof.differences] == [
        (flow.writes.name, "extra", {"key": "r7"})
    ], proof.lines()
    # Ride r0 has 0 minutes, so its row did not change.
    assert switch_headers(flow_world, flow.writes.name) == {f"r{n}": b"1>2" for n in range(1, 30)}
    assert any("20 and 30 keys; 0 gone, 19 changed, 10 new" in note for note in run.notes), run.notes
    generations = serving(flow_world, flow)
    assert [(entry.number, generations.role(entry.number)) for entry in generations.entries] == [
        (1, "kept"),
        (2, "serving"),
    ]
    assert generations.switches[-1].published == 29


def test_a_generation_with_a_difference_beyond_the_limits_waits_for_the_operator(
    flow_world: FlowWorld,
) -> None:
    rental = Rental()
    before, flow = rental.version(_as_they_are)
    rental.write(flow_world, before, 20)
    run_until_followed(flow_world, before)
    after, _ = rental.version(_only_long)
    with flow_world.running(after, rebuild_changed=True, switch=SwitchSettings()) as run:
        until(lambda: run.errors or run.notes, "the flow says that it waits")
        assert "5 of 20 keys are gone (limit 1 %)" in run.notes[-1]
        assert f"headrace generation switch MODULE:APP {flow.name} 2" in run.notes[-1]
        assert serving(flow_world, flow).serving == 1
        assert view_rows(flow_world, after) == read_by_a_stock_client(flow_world, flow) == rental.minutes()
        report = switch_now(flow_world.cluster, flow, 2)
        assert (report.counts.before, report.counts.after, report.counts.gone) == (20, 15, 5)
        assert {sample.key for sample in report.samples if sample.kind == "gone"} == {
            f"r{n}" for n in range(5)
        }
        run.wait_until_followed()
    expected = {key: minutes for key, minutes in rental.minutes().items() if minutes >= 5}
    assert view_rows(flow_world, after) == read_by_a_stock_client(flow_world, flow) == expected


def test_after_a_switch_back_the_old_generation_serves_all_that_arrived_meanwhile(
    flow_world: FlowWorld,
) -> None:
    rental = Rental()
    before, flow = rental.version(_as_they_are)
    rental.write(flow_world, before, 10)
    run_until_followed(flow_world, before)
    after, _ = rental.version(_in_seconds)
    with flow_world.running(after, rebuild_changed=True) as run:
        until_it_serves(flow_world, run, flow, 2)
        run.wait_until_followed()
        rental.write(flow_world, after, 10)
        run.wait_until_followed()
    with pytest.raises(SwitchRefused, match="has not read all that generation 2 has read"):
        switch_back(flow_world.cluster, flow, 1, wait_s=0.1)
    assert serving(flow_world, flow).switching == 0
    with flow_world.running(before) as run:
        # The kept generation goes on with its own function, in a topic of its own.
        run.wait_until_derived()
        assert run.runners[0].number == 1
        assert view_rows(flow_world, before) == read_by_a_stock_client(flow_world, flow) == rental.minutes(60)
        switch_back(flow_world.cluster, flow, 1)
        until(lambda: run.errors or view_rows(flow_world, before) == rental.minutes(), "the view is back")
        until(lambda: run.errors or serving(flow_world, flow).is_published, "the difference is published")
        rental.write(flow_world, before, 3)
        run.wait_until_followed()
    assert read_by_a_stock_client(flow_world, flow) == view_rows(flow_world, before) == rental.minutes()
    with verifier(run) as verification:
        reports = [found for found in verification.all() if isinstance(found, Report)]
    assert [(report.what, report.verdict, report.found_rows) for report in reports] == [
        ("view", "proven", 23),
        ("flow", "proven", 23),
    ], [report.lines() for report in reports]
    assert any("has the rows of generation 1: 23 keys" in note for note in reports[1].notes)
    assert set(switch_headers(flow_world, flow.writes.name).values()) == {b"2>1"}


def test_a_flow_downstream_switches_to_rows_of_the_whole_history(flow_world: FlowWorld) -> None:
    mark = uuid.uuid4().hex[:8]
    app = App(f"bikes-{mark}")
    rides = app.topic(f"rides-{mark}", Ride, key="ride_id")
    known = app.topic(f"known-{mark}", Ride, key="ride_id")
    bikes = app.table(f"bikes-{mark}", key="bike")

    @app.flow(reads=[rides], writes=known, name=f"know-{mark}")
    def know(rides: DataFrame) -> DataFrame:
        return rides

    @app.flow(reads=[known], writes=bikes, name=f"count-{mark}", unbounded=True)
    def count(known: DataFrame) -> DataFrame:
        return known.groupBy("bike").agg(F.count("*").alias("rides"))

    flow_world.declare(app)
    flow_world.write(rides, [Ride(f"r{number}", f"b{number % 2}", 1) for number in range(24)])
    with flow_world.running(app, follow=False) as run:
        run.wait_until_derived()
    # Every bike has rides in the first batch, so no key is missing while the history is derived.
    with flow_world.running(app, follow=False, rebuild=[know.name, count.name], max_rows=3) as run:
        for flow in (count, know):
            until_it_serves(flow_world, run, flow, 2)
        assert any("2 and 2 keys; 0 gone, 0 changed, 0 new" in note for note in run.notes), run.notes
    assert switch_headers(flow_world, bikes.name) == {}


def test_a_flow_joins_a_table_that_is_rebuilt_too_only_when_the_table_is_complete(
    flow_world: FlowWorld,
) -> None:
    mark = uuid.uuid4().hex[:8]
    app = App(f"models-{mark}")
    deliveries = app.topic(f"deliveries-{mark}", Ride, key="ride_id")
    bikes = app.table(f"bikes-{mark}", Ride, key="bike")
    rides = app.topic(f"rides-{mark}", Ride, key="ride_id")
    known = app.topic(f"known-{mark}", key="ride_id")

    @app.flow(reads=[deliveries], writes=bikes, name=f"deliver-{mark}")
    def deliver(deliveries: DataFrame) -> DataFrame:
        return deliveries

    @app.flow(reads=[rides, bikes], writes=known, name=f"know-{mark}")
    def know(rides: DataFrame, bikes: DataFrame) -> DataFrame:
        delivered = bikes.select("bike", F.col("ride_id").alias("delivery"))
        return rides.join(delivered, "bike", "left")

    flow_world.declare(app)
    flow_world.write(deliveries, [Ride(f"d{number}", f"b{number}", 1) for number in range(15)])
    with flow_world.running(app, follow=False) as run:
        run.wait_until_derived()
        flow_world.write(rides, [Ride(f"r{number}", "b14", 1) for number in range(3)])
        run.wait_until_derived()
    with flow_world.running(app, follow=False, rebuild=[deliver.name, know.name], max_rows=3) as run:
        until_it_serves(flow_world, run, know, 2)
    rows = last_values(flow_world.cluster.bootstrap, f"{known.name}.g2")
    assert {key: row["delivery"] for key, row in rows.items()} == dict.fromkeys(("r0", "r1", "r2"), "d14")


def test_drivers_continue_after_the_process_that_switched_has_died(flow_world: FlowWorld) -> None:
    rental = Rental()
    before, flow = rental.version(_as_they_are)
    rental.write(flow_world, before, 5)
    run_until_followed(flow_world, before)
    with GenerationsWriter(flow_world.cluster, flow) as writer:
        entry = writer.begin_generation("another function", "a test")
        dead = writer.read().with_switch(entry.number, "elsewhere:1", 0, sealed=True)
        writer.write(dead)
    rental.write(flow_world, before, 5)
    with flow_world.running(before) as run:
        run.wait_until_followed()
    assert serving(flow_world, flow).switching == 0
    assert read_by_a_stock_client(flow_world, flow) == rental.minutes()


def test_a_switch_that_another_writer_interrupts_changes_nothing(flow_world: FlowWorld) -> None:
    rental = Rental()
    before, flow = rental.version(_as_they_are)
    rental.write(flow_world, before, 5)
    run_until_followed(flow_world, before)
    after, _ = rental.version(_in_seconds)
    with flow_world.running(after, rebuild_changed=True, switch=SwitchSettings(auto=False)) as run:
        run.wait_until_derived()
    operation = SwitchOperation(flow_world.cluster, flow, 2)
    operation.begin()
    with GenerationsWriter(flow_world.cluster, flow) as writer:
        writer.write(writer.read())
    operation.close()
    generations = serving(flow_world, flow)
    assert (generations.serving, generations.switching) == (1, 0)
    assert read_by_a_stock_client(flow_world, flow) == rental.minutes()


def test_a_dropped_generation_and_its_topics_are_gone_and_its_driver_ends(flow_world: FlowWorld) -> None:
    rental = Rental()
    before, flow = rental.version(_as_they_are)
    rental.write(flow_world, before, 5)
    run_until_followed(flow_world, before)
    after, _ = rental.version(_in_seconds)
    with flow_world.running(after, rebuild_changed=True, switch=SwitchSettings(auto=False)) as run:
        run.wait_until_derived()
        progress = progress_of(flow_world.cluster, flow, 2)
        assert progress is not None
        drop_generation(flow_world.cluster, after, flow, 2)
        until(lambda: run.runners[0].status.state == "stopped", "the driver ends")
    assert flow_world.cluster.topic(progress.generation.output) is None
    assert flow_world.cluster.topic(own_progress_topic(flow, 2)) is None
    assert [entry.number for entry in serving(flow_world, flow).entries] == [1]


def test_the_stable_topic_of_a_flow_that_an_earlier_release_rebuilt_gets_the_rows_of_the_serving_generation(
    flow_world: FlowWorld,
) -> None:
    rental = Rental()
    app, flow = rental.version(_in_seconds)
    rental.write(flow_world, app, 5)
    run_until_followed(flow_world, app)
    generations = serving(flow_world, flow)
    with flow_world.running(app, rebuild=[flow.name], switch=SwitchSettings(auto=False)) as run:
        until(lambda: run.errors or _has_derived(flow_world, flow, 2), "the new generation has derived all")
    with GenerationsWriter(flow_world.cluster, flow) as writer:
        # Earlier releases let the new generation serve without writing to the stable topic.
        now = writer.read()
        writer.write(msgspec.structs.replace(now, serving=2, is_published=False, entries=now.entries[1:]))
    producer = flow_world.cluster.producer({})
    producer.produce(flow.writes.name, json.dumps({"ride_id": "r1", "bike": "", "minutes": 1}), "r1")
    assert producer.flush(30) == 0
    report = publish(flow_world.cluster, flow)
    assert report is not None
    assert (report.counts.changed, report.counts.gone, report.counts.new) == (1, 0, 0)
    assert read_by_a_stock_client(flow_world, flow) == rental.minutes(60)
    assert publish(flow_world.cluster, flow) is None
    assert generations.serving == 1


def _has_derived(world: FlowWorld, flow: Flow, number: int) -> bool:
    progress: Any = progress_of(world.cluster, flow, number)
    return progress is not None and progress.last is not None and progress.last.totals.rows_out == 5
