"""``headrace.testing`` runs a whole app in the test's process, with the real broker, real flows and real views."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from headrace.app import App
from headrace.errors import HeadraceError
from headrace.testing import Deleted, DrivenClock, FlowTester, InvalidSample, RunningApp, eventually

Running = Callable[..., AbstractContextManager[RunningApp]]
NOON = datetime(2026, 1, 31, 12, 0, tzinfo=UTC)
MINUTE = timedelta(minutes=1)


@dataclass(frozen=True)
class Ride:
    ride_id: str
    station: str
    at: datetime


@dataclass(frozen=True)
class Station:
    station: str
    name: str


def rides_app(*, doubled: bool = False) -> App:
    """Count rides per named station. ``doubled`` is a change of the second flow."""
    app = App("rides")
    rides = app.topic("rides", Ride, key="ride_id", time="at", late=MINUTE)
    stations = app.table("stations", Station, key="station")
    named = app.topic("named", key="ride_id", time="at", late=MINUTE)

    @app.flow(reads=[rides, stations], writes=named, late="side")
    def name_stations(rides: DataFrame, stations: DataFrame) -> DataFrame:
        return rides.join(stations, "station").select("ride_id", "name", "at")

    weight = 2 if doubled else 1

    @app.flow(reads=[named], writes=app.topic("counts", key="name"), unbounded=True)
    def count_rides(named: DataFrame) -> DataFrame:
        return named.groupBy("name").agg((F.count(F.lit(1)) * weight).alias("rides"))

    app.view("counts", count_rides.writes)
    app.view("stations", stations)
    return app


def ride(number: int, station: str = "a", *, after: timedelta = timedelta(0)) -> Ride:
    return Ride(f"r{number}", station, NOON + after)


STATIONS = [Station("a", "Alder"), Station("b", "Birch")]
BATCHES: list[list[Any]] = [
    [ride(1), ride(2, "b"), ride(3, "none")],
    [ride(4, after=-2 * MINUTE), b"{}", ride(5, "b", after=MINUTE)],
    [ride(6), ride(7, after=-30 * MINUTE)],
]


def test_a_running_app_has_the_rows_late_and_dead_records_of_the_batch_also_after_a_change(
    running: Running, derive: FlowTester
) -> None:
    app = rides_app()
    name_stations, count_rides = app.flows
    named = derive(name_stations, {"stations": STATIONS}, *({"rides": batch} for batch in BATCHES))
    counted = derive(count_rides, named.rows, app=app)
    with running(app) as run:
        run.write("stations", *STATIONS, Station("x", "Xylem"), Deleted({"station": "x"}))
        for batch in BATCHES:
            run.write("rides", *batch)
            run.catch_up()
        assert run.records("named") == named.rows
        late = [(late.row["ride_id"], late.newest) for late in run.late("name_stations")]
        assert late == [(late.row["ride_id"], late.newest) for late in named.late]
        assert [ride_id for ride_id, _ in late] == ["r4", "r7"]
        assert [
            (dead.topic, dead.reason, dead.message, dead.value) for dead in run.dead("name_stations")
        ] == [(dead.topic, dead.reason, dead.message, dead.value) for dead in named.dead]
        assert (
            run.rows("counts")
            == counted.current
            == [{"name": "Alder", "rides": 2}, {"name": "Birch", "rides": 2}]
        )
        assert [row["name"] for row in run.rows("stations")] == ["Alder", "Birch"]
        assert run.row("stations", "b") == {"station": "b", "name": "Birch"}
        assert run.row("stations", "x") is None
    # A changed flow stops, and so does the test, unless the run may rebuild it.
    with (
        pytest.raises(HeadraceError, match="count_rides"),
        running(rides_app(doubled=True)) as run,
        pytest.raises(AssertionError, match="the app cannot catch up"),
    ):
        run.catch_up()
    with running(rides_app(doubled=True), rebuild_changed=True, serve=True) as run:
        run.catch_up()
        assert run.rows("counts") == [{"name": "Alder", "rides": 4}, {"name": "Birch", "rides": 4}]
        with urllib.request.urlopen(f"{run.url}/v1/views/counts/rows/Alder") as response:
            assert json.load(response)["row"]["rides"] == 4


def test_the_test_drives_the_time_of_the_log(running: Running, clock: DrivenClock) -> None:
    app = App("tables")
    app.view("stations", app.table("stations", Station, key="station"))
    events = app.topic("rides", Ride, key="ride_id", time="at")
    with running(app) as run:
        assert run.rows("stations") == []
        run.write(events, ride(1))
        assert run.records(events) == [{"ride_id": "r1", "station": "a", "at": NOON}]
        before = clock.now()
        clock.advance(3_600)
        assert clock.now() - before >= timedelta(hours=1)
        run.write("stations", STATIONS[0])
        assert eventually(lambda: run.rows("stations"), lambda rows: len(rows) == 1)


@pytest.mark.parametrize(
    ("use", "message"),
    [
        (lambda run: run.write("named", {}), "cannot write to topic 'named': flow 'name_stations' writes it"),
        (lambda run: run.rows("count"), "app 'rides' has no view 'count'"),
        (lambda run: run.row("counts", "a", "b"), "the key of view 'counts' is name"),
        (lambda run: run.dead("nothing"), "no flow and no view named 'nothing'"),
        (lambda run: run.late("nothing"), "has no flow 'nothing'"),
    ],
)
def test_a_name_that_the_app_does_not_declare_is_refused(
    use: Callable[[RunningApp], object], message: str, idle_run: RunningApp
) -> None:
    with pytest.raises(InvalidSample, match=message):
        use(idle_run)


@pytest.fixture(scope="module")
def idle_run() -> RunningApp:
    """An app that does not run: names are checked before the log is used."""
    from headrace.runtime.run import Run
    from headrace.settings import Settings

    return RunningApp(Run(rides_app(), Settings(), note=lambda line: None), DrivenClock(), [])
