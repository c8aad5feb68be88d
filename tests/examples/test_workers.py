"""``examples/workers``: its stories run once, and are compared with the written records. Needs no Spark."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest

from examples.stage import Stage
from examples.workers.story import Outcome, play
from faults.servers.headrace_broker import start_headrace
from faults.servers.redis import fresh_database, shared
from tests.examples.conftest import PlayedStage, expect_page

# Parcel 0 is for the first depot, parcel 1 for the second, and so on.
HALF = Counter({"east": 34, "north": 33, "west": 33})
ALL = Counter({"east": 67, "north": 67, "west": 66})
FIRST_FORTY = Counter({"east": 14, "north": 13, "west": 13})


def no_spark() -> None:
    raise AssertionError("the workers need no Spark")


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PlayedStage]:
    server = start_headrace(tmp_path_factory.mktemp("log"))
    lines: list[str] = []
    home = tmp_path_factory.mktemp("stage")
    yield PlayedStage(Stage(server.bootstrap, home, no_spark, lines.append), lines)  # type: ignore[arg-type]
    assert server.stop() == 0


@pytest.fixture(scope="module")
def outcome(played: PlayedStage) -> Outcome:
    database = fresh_database()
    shared().client(database).flushdb()
    return play(played.stage, f"{shared().url}?db={database}")


@pytest.mark.parametrize(
    ("method", "seen", "counted"),
    [
        ("after", 140, HALF + FIRST_FORTY),
        ("together", 100, HALF),
        ("plain", 240, ALL + FIRST_FORTY),
        ("offset", 240, ALL),
    ],
)
def test_a_repeated_record_counts_once_if_position_and_count_commit_together(
    outcome: Outcome, method: str, seen: int, counted: Counter[str]
) -> None:
    assert (outcome.seen[method], outcome.counts[method]) == (seen, counted)


def test_a_view_whose_follower_is_killed_has_each_parcel_applied_once(outcome: Outcome) -> None:
    assert outcome.seen["view"] == 200
    depots = ("east", "north", "west")
    assert outcome.parcels == {f"p{number:03}": depots[number % 3] for number in range(200)}
    assert outcome.proven["parcels"] == 0


def test_a_follower_that_wakes_after_it_was_replaced_is_refused(outcome: Outcome) -> None:
    assert outcome.stock_by_hand == 5, "the worker by hand did not stop, or did not write when it continued"
    assert (outcome.zombie_code, outcome.zombie_error) == (1, "HR-VIEW-STALE")
    assert outcome.stock == {"lamp": 7}
    assert outcome.proven["stock"] == 0


def test_the_page_of_an_example_shows_its_output(outcome: Outcome, played: PlayedStage) -> None:
    expect_page("workers", played.lines)
