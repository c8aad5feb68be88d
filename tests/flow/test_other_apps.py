"""An app that reads topics of another app: its owner is checked, and its flows stop when the other app switches."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from faults.flows.world import FlowWorld, RunningApp
from faults.wait import until
from headrace.app import App
from headrace.client.generations import find_generations, generations_of, progress_of
from headrace.client.generations_writer import GenerationsWriter
from headrace.flow.errors import UpstreamSwitched
from headrace.model.declarations import Flow
from headrace.model.errors import AppMistakes
from headrace.model.generations import Switch
from headrace.ops.schemas.start import expect_history_fits
from headrace.runtime.generation_notices import GenerationNotices
from headrace.settings import SwitchSettings
from tests.flow.topic_contents import last_values
from tests.verify.planted_faults import verifier


@dataclass(frozen=True)
class Ride:
    ride: str


@dataclass(frozen=True)
class Length:
    ride: str
    letters: int


class Apps:
    """An app that derives a topic, and the names of its topics."""

    def __init__(self, world: FlowWorld) -> None:
        self.mark = uuid.uuid4().hex[:8]
        self.world = world
        self.first = App(f"bikes-{self.mark}")
        self.rides = self.first.topic(f"rides-{self.mark}", Ride, key="ride")
        self.lengths = self.first.topic(f"lengths-{self.mark}", key="ride")
        self.flow = self.first.flow(reads=[self.rides], writes=self.lengths, name="measure")(_measure)
        world.declare(self.first)
        world.write(self.rides, [Ride("a"), Ride("bb")])
        with world.running(self.first, follow=False) as run:
            run.wait_until_derived()

    def reader(self, topic: str, schema: type, of: str | None) -> App:
        app = App(f"reader-{self.mark}")
        app.topic(topic, schema, key="ride", of=of)
        return app

    def check(self, app: App) -> None:
        expect_history_fits(self.world.cluster, app, 0)


def _measure(rides: Any) -> Any:
    return rides.selectExpr("ride", "length(ride) AS letters")


@pytest.fixture(scope="module")
def apps(flow_world: FlowWorld) -> Apps:
    return Apps(flow_world)


def test_a_topic_of_another_app_is_declared_with_its_owner(apps: Apps) -> None:
    lengths = apps.lengths.name
    apps.check(apps.reader(lengths, Length, apps.first.name))
    for of, message in {
        None: f"is derived by flow 'measure' of app {apps.first.name!r}",
        "trains": f"declared as a topic of app 'trains', but app {apps.first.name!r} owns it",
    }.items():
        with pytest.raises(AppMistakes, match=message) as refused:
            apps.check(apps.reader(lengths, Length, of))
        (mistake,) = refused.value.mistakes
        assert (mistake.code, mistake.hint) == ("HR-APP-OF", f'declare it with of="{apps.first.name}"')
    with pytest.raises(AppMistakes, match="does not exist on this log"):
        apps.check(apps.reader(f"nothing-{apps.mark}", Length, "bikes"))


def test_the_records_of_another_app_must_fit_the_declared_schema(apps: Apps) -> None:
    @dataclass(frozen=True)
    class Wrong:
        ride: str
        metres: int

    with pytest.raises(AppMistakes, match="metres"):
        apps.check(apps.reader(apps.lengths.name, Wrong, apps.first.name))


def test_a_topic_of_a_flow_that_the_app_no_longer_declares_is_refused(apps: Apps) -> None:
    app = App(apps.first.name)
    app.topic(apps.lengths.name, Length, key="ride")
    with pytest.raises(AppMistakes, match="which the app no longer declares"):
        apps.check(app)


def test_a_generation_and_a_switch_of_another_app_are_reported_once(apps: Apps) -> None:
    lines: list[str] = []
    notices = GenerationNotices(
        apps.world.cluster, apps.reader(apps.lengths.name, Length, apps.first.name), lines.append
    )
    notices.poll()
    with GenerationsWriter(apps.world.cluster, apps.flow) as writer:
        entry = writer.begin_generation("other", "a test")
        notices.poll()
        before = find_generations(apps.world.cluster, apps.lengths.name)
        assert before is not None
        switch = Switch(before.serving, entry.number, 0, 7)
        writer.write(msgspec.structs.replace(before, serving=entry.number, switches=(switch,)))
    notices.poll()
    notices.poll()
    began, switched = lines
    assert f"generation {entry.number} begins (a test); it is derived beside generation 1" in began
    assert f"generation {entry.number} serves now, after generation 1; 7 records" in switched


NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
LATE = timedelta(minutes=1)


@dataclass(frozen=True)
class Trip:
    trip: str
    minutes: int
    at: datetime


def _as_they_are(trips: DataFrame) -> DataFrame:
    return trips


def _in_seconds_without_the_first(trips: DataFrame) -> DataFrame:
    return trips.where("trip <> 't0'").withColumn("minutes", F.col("minutes") * 60)


class TripsAndSums:
    """An app that derives trips, in several versions, and an app that sums them by day."""

    def __init__(self) -> None:
        self.mark = uuid.uuid4().hex[:8]
        self.trips_app, self.derive_trips = self.version(_as_they_are)
        self.sums_app = App(f"billing-{self.mark}")
        known = self.sums_app.topic(
            f"known-{self.mark}", Trip, key="trip", time="at", late=LATE, of=self.trips_app.name
        )

        @self.sums_app.flow(
            reads=[known],
            writes=self.sums_app.topic(f"sums-{self.mark}", key="day"),
            name=f"sum-{self.mark}",
        )
        def sum_days(known: DataFrame) -> DataFrame:
            days = known.groupBy(F.window("at", "1 day").alias("window"))
            summed = days.agg(F.sum("minutes").alias("minutes"), F.count("*").alias("trips"))
            return summed.select(F.to_date("window.start").alias("day"), "minutes", "trips")

        self.sum_days = sum_days

    def version(self, derive: Callable[[DataFrame], DataFrame]) -> tuple[App, Flow]:
        app = App(f"trips-{self.mark}")
        trips = app.topic(f"trips-{self.mark}", Trip, key="trip")
        known = app.topic(f"known-{self.mark}", key="trip", time="at")
        flow = app.flow(reads=[trips], writes=known, name=f"derive-{self.mark}")(lambda trips: derive(trips))
        return app, flow

    def write(self, world: FlowWorld, first: int, count: int) -> None:
        trips = [
            Trip(f"t{number}", number, NOON + timedelta(minutes=number))
            for number in range(first, first + count)
        ]
        world.declare(self.trips_app)
        world.write(self.trips_app.topics[0], trips)

    def sums(self, world: FlowWorld) -> list[tuple[int, int]]:
        rows = last_values(world.cluster.bootstrap, self.sum_days.writes.name)
        return [(row["minutes"], row["trips"]) for row in rows.values()]

    def counts(self, world: FlowWorld, generation: int) -> tuple[int, int]:
        """The late and the dead records of a generation of the sums."""
        progress = progress_of(world.cluster, self.sum_days, generation)
        assert progress is not None
        assert progress.last is not None
        return progress.last.totals.late, progress.last.totals.dead


def _expect_sums_proven(run: RunningApp, flow: Flow) -> None:
    with verifier(run) as verification:
        report = verification.flow(flow)
    assert report.verdict == "proven", report.lines()


def test_a_flow_stops_before_the_difference_of_another_app_and_a_rebuild_reads_only_the_new_rows(
    flow_world: FlowWorld,
) -> None:
    apps = TripsAndSums()
    apps.write(flow_world, 0, 10)
    with flow_world.running(apps.trips_app, follow=False) as run:
        run.wait_until_derived()
    after, _ = apps.version(_in_seconds_without_the_first)
    with flow_world.running(apps.sums_app, follow=False) as sums:
        sums.wait_until_derived()
        assert apps.sums(flow_world) == [(45, 10)]
        with flow_world.running(after, follow=False, rebuild_changed=True) as trips:
            until(lambda: sums.errors, "the flow has stopped")
            trips.wait_until_derived()
        (error,) = sums.errors
        sums.errors.clear()
    assert isinstance(error, UpstreamSwitched)
    # The difference has a tombstone, and nine rows with old times. None of them was read.
    assert apps.sums(flow_world) == [(45, 10)]
    assert apps.counts(flow_world, 1) == (0, 0)

    waits = SwitchSettings(auto=False)
    with flow_world.running(apps.sums_app, follow=False, rebuild=[apps.sum_days.name], switch=waits) as sums:
        until(lambda: sums.errors or sums.runners[0].current is not None, "the new generation begins")
        until(lambda: sums.errors or sums.runners[0].lag() == 0, "the new generation has derived all")
    with flow_world.running(apps.sums_app, follow=False) as sums:
        # The generation that serves cannot be continued, so the one that is being built is.
        assert [runner.number for runner in sums.runners] == [2]
        apps.write(flow_world, 10, 2)
        with flow_world.running(after, follow=False) as trips:
            trips.wait_until_derived()
            until(lambda: sums.errors or _serving(flow_world, apps.sum_days) == 2, "generation 2 serves")
            sums.wait_until_derived()
        _expect_sums_proven(sums, apps.sum_days)
    assert apps.sums(flow_world) == [(66 * 60, 11)]
    assert apps.counts(flow_world, 2) == (0, 0)


def _serving(world: FlowWorld, flow: Flow) -> int:
    generations = generations_of(world.cluster, flow)
    return 0 if generations is None else generations.serving
