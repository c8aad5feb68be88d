"""The change story of ``examples/bikes``: its flows, whose schema and function change on one log.

A required field is refused, the field with a default is accepted, the changed flows are derived beside the serving ones
and switch, and a change that turns out to be wrong is reverted. A stock Kafka client reads the stable topics.
"""

from __future__ import annotations

import sqlite3
import uuid
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from examples.bikes import Action, Rental, Station, count_bikes, locate_rentals
from examples.bikes.traffic import STATIONS
from faults.committed_records import committed
from faults.flows.world import FlowWorld, RunningApp
from faults.wait import until
from headrace.app import App
from headrace.client.generations import find_generations
from headrace.flow.switch.difference import SWITCH_HEADER
from headrace.flow.switch.operation import publish, switch_back
from headrace.model.declarations import Flow
from headrace.model.errors import AppMistakes
from headrace.model.store import file_of
from headrace.ops.schemas.start import expect_history_fits
from tests.flow.topic_contents import last_values
from tests.verify.planted_faults import verifier

BEGIN = datetime(2026, 4, 1, 8, tzinfo=UTC)
RENTALS = 60


@dataclass(frozen=True)
class PaidRental(Rental):
    fare: int


@dataclass(frozen=True)
class MaybePaidRental(Rental):
    fare: int = 100


def locate_paid_rentals(rentals: DataFrame, stations: DataFrame) -> DataFrame:
    known = stations.select("station_id", "name", "district")
    return rentals.join(known, "station_id", "left").select(
        "rental_id", "bike_id", "station_id", "name", "district", "action", "fare", "at"
    )


def count_bikes_the_wrong_way(rides: DataFrame) -> DataFrame:
    change = F.when(F.col("action") == Action.RETURNED, -1).otherwise(1)
    return rides.groupBy("station_id").agg(
        F.max_by("name", "at").alias("name"),
        F.sum(change).alias("available"),
        F.max("at").alias("changed_at"),
    )


class Bikes:
    """The versions of the app, under the same names, and what was written."""

    def __init__(self, world: FlowWorld) -> None:
        self.world = world
        self.mark = uuid.uuid4().hex[:8]
        self.written: list[Rental] = []

    def version(self, schema: type, locate: Callable[..., Any], count: Callable[..., Any]) -> App:
        app = App(f"bikes-{self.mark}")
        stations = app.table(f"stations-{self.mark}", Station, key="station_id")
        late = timedelta(minutes=10)
        rentals = app.topic(f"rentals-{self.mark}", schema, key="bike_id", time="at", late=late)
        rides = app.topic(f"rides-{self.mark}", key="rental_id", time="at", late=late)
        bikes = app.topic(f"bikes-{self.mark}", key="station_id")
        app.flow(reads=[rentals, stations], writes=rides, name=f"locate-{self.mark}")(locate)
        app.flow(reads=[rides], writes=bikes, name=f"count-{self.mark}", unbounded=True)(count)
        app.view("rides", rides)
        app.view("bikes", bikes)
        return app

    def write(self, app: App, schema: type, count: int, **fields: Any) -> None:
        self.world.declare(app)
        if not self.written:
            self.world.write(app.topics[0], STATIONS)
        start = len(self.written)
        rentals = [
            schema(
                f"r{number}",
                f"b{number % 7}",
                STATIONS[number % len(STATIONS)].station_id,
                Action.TAKEN if number % 3 else Action.RETURNED,
                BEGIN + timedelta(seconds=number),
                **fields,
            )
            for number in range(start, start + count)
        ]
        self.world.write(app.topics[1], rentals)
        self.written += rentals

    def available(self) -> dict[str, int]:
        counted: Counter[str] = Counter()
        for rental in self.written:
            counted[rental.station_id] += 1 if rental.action is Action.RETURNED else -1
        return dict(counted)

    def view(self, app: App, name: str, columns: str) -> list[tuple[Any, ...]]:
        view = next(view for view in app.views if view.name == name)
        path = file_of(view, app.name, self.world.home)
        assert path is not None
        with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as store:
            return sorted(store.execute(f'SELECT {columns} FROM "{name}"'))

    def serving(self, flow: Flow) -> int:
        generations = find_generations(self.world.cluster, flow.writes.name)
        assert generations is not None
        return generations.serving

    def until_serving(self, run: RunningApp, numbers: dict[str, int]) -> None:
        flows = {flow.name.split("-")[0]: flow for flow in run.app.flows}
        until(
            lambda: run.errors or all(self.serving(flows[name]) == n for name, n in numbers.items()),
            f"generations {numbers} serve",
            timeout_s=240,
        )
        assert not run.errors
        run.wait_until_followed()


def expect_proven(run: RunningApp) -> None:
    with verifier(run) as verification:
        reports = [verification.view(view) for view in run.app.views]
    assert [report.verdict for report in reports] == ["proven", "proven"], [r.lines() for r in reports]


def test_the_bikes_change_their_schema_and_functions_and_take_a_wrong_change_back(
    flow_world: FlowWorld,
) -> None:
    bikes, bootstrap = Bikes(flow_world), flow_world.cluster.bootstrap
    first = bikes.version(Rental, locate_rentals.function, count_bikes.function)
    bikes.write(first, Rental, RENTALS)
    expect_history_fits(flow_world.cluster, first, 0).record(flow_world.cluster)
    with flow_world.running(first) as run:
        run.wait_until_followed()
        expect_proven(run)
    locate, count = first.flows
    ends = flow_world.cluster.ends(locate.writes.name)

    # A required field: refused before anything happens.
    required = bikes.version(PaidRental, locate_paid_rentals, count_bikes.function)
    with pytest.raises(AppMistakes, match="fare") as refused:
        expect_history_fits(flow_world.cluster, required, 0)
    assert [mistake.code for mistake in refused.value.mistakes] == ["HR-APP-HISTORY"]
    assert flow_world.cluster.ends(locate.writes.name) == ends

    # With a default: derived beside, compared and switched, the flow downstream first.
    changed = bikes.version(MaybePaidRental, locate_paid_rentals, count_bikes.function)
    expect_history_fits(flow_world.cluster, changed, 0).record(flow_world.cluster)
    with flow_world.running(changed, rebuild_changed=True) as run:
        bikes.until_serving(run, {"locate": 2, "count": 2})
        bikes.write(changed, MaybePaidRental, 10, fare=250)
        run.wait_until_followed()
        expect_proven(run)
        assert any(f"{RENTALS} changed" in note for note in run.notes), run.notes
    fares = sorted((rental.rental_id, getattr(rental, "fare", 100)) for rental in bikes.written)
    assert bikes.view(changed, "rides", "rental_id, fare") == fares
    rows = last_values(bootstrap, locate.writes.name)
    assert sorted((key, row["fare"]) for key, row in rows.items()) == fares
    # A stock client gets every row of the serving generation once, and sees which records a switch wrote.
    records = [
        (message.key().decode(), dict(message.headers() or []).get(SWITCH_HEADER))
        for message in committed(bootstrap, locate.writes.name)
    ]
    assert Counter(key for key, header in records if header == b"1>2") == Counter(
        rental.rental_id for rental in bikes.written[:RENTALS]
    )
    assert Counter(key for key, header in records if header is None) == Counter(
        rental.rental_id for rental in bikes.written
    )

    # A wrong change of the last flow is taken back.
    wrong = bikes.version(MaybePaidRental, locate_paid_rentals, count_bikes_the_wrong_way)
    with flow_world.running(wrong, rebuild_changed=True) as run:
        bikes.until_serving(run, {"locate": 2, "count": 3})
        assert dict(bikes.view(wrong, "bikes", "station_id, available")) == {
            station: -available for station, available in bikes.available().items()
        }
    with flow_world.running(changed) as run:
        bikes.write(changed, MaybePaidRental, 10)
        run.wait_until_derived()
        switch_back(flow_world.cluster, count, 2)
        publish(flow_world.cluster, count)
        bikes.until_serving(run, {"locate": 2, "count": 2})
        expect_proven(run)
    assert dict(bikes.view(changed, "bikes", "station_id, available")) == bikes.available()
    last = last_values(bootstrap, count.writes.name)
    assert {key: row["available"] for key, row in last.items()} == bikes.available()
