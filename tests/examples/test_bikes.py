"""``examples/bikes``: its story runs once, and its views are compared with counts in plain Python. In its traffic,
customers take only bikes that are at a station.
"""

from __future__ import annotations

import random
import signal
import sqlite3
import threading
from collections import Counter
from contextlib import closing
from datetime import timedelta

import pytest

from examples.bikes import (
    Action,
    Rental,
    app,
    count_bikes,
    count_rides,
    locate_rentals,
    rentals,
    stations,
)
from examples.bikes.story import FIRST_AT, Outcome, play
from examples.bikes.traffic import STATIONS, City, feed
from faults.flows.world import FlowWorld
from headrace.client.progress import current
from headrace.testing import FlowTester
from tests.examples.conftest import PlayedStage, expect_page
from tools.java import QUICK_START

# ``make soak`` runs the story, because it starts two Sparks; ``make test`` derives the flows in batch.


@pytest.fixture(scope="module")
def outcome(played: PlayedStage) -> Outcome:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HEADRACE_SPARK__JAVA_OPTIONS", " ".join(QUICK_START))
        return play(played.stage)


def rows(played: PlayedStage, statement: str) -> list[tuple[object, ...]]:
    with closing(sqlite3.connect(played.stage.data / f"{app.name}.db")) as store:
        return store.execute(statement).fetchall()


@pytest.mark.soak
def test_the_views_have_the_counts_of_all_rentals_after_a_kill(outcome: Outcome, played: PlayedStage) -> None:
    names = {station.station_id: station.name for station in STATIONS}
    available = Counter[str]()
    activity = Counter[tuple[str, str, Action]]()
    for rental in outcome.written:
        available[rental.station_id] += 1 if rental.action is Action.RETURNED else -1
        minute = rental.at.replace(minute=rental.at.minute // 5 * 5, second=0, microsecond=0)
        activity[rental.station_id, f"{minute:%Y-%m-%dT%H:%M:%S.%fZ}", rental.action] += 1
    assert rows(played, "SELECT station_id, name, available FROM bikes ORDER BY 1") == [
        (station, names[station], count) for station, count in sorted(available.items())
    ]
    windows = sorted({(station, start) for station, start, _ in activity})
    assert rows(played, "SELECT station_id, start, taken, returned FROM activity ORDER BY 1, 2") == [
        (*window, activity[*window, Action.TAKEN], activity[*window, Action.RETURNED]) for window in windows
    ]
    assert rows(played, "SELECT rental_id, name FROM rides ORDER BY 1") == sorted(
        (rental.rental_id, names[rental.station_id]) for rental in outcome.written
    )


@pytest.mark.soak
def test_every_view_is_proven_before_and_after_a_kill(outcome: Outcome, flow_world: FlowWorld) -> None:
    assert outcome.exit_code == -signal.SIGKILL
    assert outcome.verdicts == ["proven"] * 6
    for flow in app.flows:
        progress = current(flow_world.cluster, flow.progress_topic)
        assert progress is not None
        assert progress.last is not None
        assert (progress.last.totals.late, progress.last.totals.dead) == (0, 0)


@pytest.mark.soak
def test_the_page_of_an_example_shows_its_output(outcome: Outcome, played: PlayedStage) -> None:
    expect_page("bikes", played.lines)


def test_the_flows_count_a_morning_of_rentals(flow_world: FlowWorld) -> None:
    derive, city = FlowTester(flow_world.spark), City()
    written = [
        *city.deliver(FIRST_AT),
        *(city.rental(FIRST_AT + n * timedelta(seconds=9)) for n in range(300)),
    ]
    located = derive(locate_rentals, {stations: STATIONS, rentals: written}).rows
    names = {station.station_id: station.name for station in STATIONS}
    assert [(row["rental_id"], row["name"]) for row in located] == [
        (rental.rental_id, names[rental.station_id]) for rental in written
    ]
    counted = derive(count_bikes, located, app=app).current
    assert {row["station_id"]: row["available"] for row in counted} == Counter(city.parked.values())
    windows = derive(count_rides, located, app=app).current
    assert sum(row["taken"] - row["returned"] for row in windows) == len(city.ridden) - 90
    assert {row["start"].minute % 5 for row in windows} == {0}


def test_customers_take_only_bikes_that_are_at_a_station() -> None:
    city = City(seed=random.randrange(1 << 30))
    parked: dict[str, str] = {}
    for rental in _events(city):
        if rental.action is Action.TAKEN:
            assert parked.pop(rental.bike_id) == rental.station_id
        else:
            assert rental.bike_id not in parked
            parked[rental.bike_id] = rental.station_id
    assert parked == city.parked
    assert len(parked) + len(city.ridden) == 90


def test_replayed_traffic_has_the_bikes_of_the_earlier_traffic() -> None:
    first, second = City(), City()
    second.replay((rental.bike_id, rental.station_id, rental.action) for rental in _events(first))
    assert (second.parked, second.ridden) == (first.parked, first.ridden)
    assert list(second.deliver(FIRST_AT)) == []


def _events(city: City) -> list[Rental]:
    return [*city.deliver(FIRST_AT), *(city.rental(FIRST_AT) for _ in range(5_000))]


class _Steps(threading.Event):
    """Stops the feed after a number of steps, without waiting."""

    def __init__(self, steps: int) -> None:
        super().__init__()
        self._steps = steps

    def wait(self, timeout: float | None = None) -> bool:
        self._steps -= 1
        return self._steps < 0


@pytest.mark.soak
def test_the_feed_continues_with_the_bikes_that_are_in_the_log(
    outcome: Outcome, flow_world: FlowWorld
) -> None:
    """Runs last, because it writes more rentals."""
    feed(flow_world.cluster, _Steps(0))
    assert flow_world.cluster.ends(rentals.name) == {0: len(outcome.written)}
    feed(flow_world.cluster, _Steps(3))
    assert flow_world.cluster.ends(rentals.name) == {0: len(outcome.written) + 12}
