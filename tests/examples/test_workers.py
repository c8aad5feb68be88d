"""``examples/workers``: its stories are played once, and held against what was written. Needs no Spark."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest

from examples.stage import Stage
from examples.workers.story import Told, play
from tests.examples.conftest import Heard, expect_page
from tests.support.embedded import start_headrace
from tests.support.redis import fresh_database, shared

# Parcel 0 comes to the first depot, parcel 1 to the second, and so on.
HALF = Counter({"east": 34, "north": 33, "west": 33})
ALL = Counter({"east": 67, "north": 67, "west": 66})
FIRST_FORTY = Counter({"east": 14, "north": 13, "west": 13})


def no_spark() -> None:
    raise AssertionError("workers need none")


@pytest.fixture(scope="module")
def heard(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Heard]:
    server = start_headrace(tmp_path_factory.mktemp("log"))
    lines: list[str] = []
    home = tmp_path_factory.mktemp("stage")
    yield Heard(Stage(server.bootstrap, home, no_spark, lines.append), lines)  # type: ignore[arg-type]
    assert server.stop() == 0


@pytest.fixture(scope="module")
def told(heard: Heard) -> Told:
    database = fresh_database()
    shared().client(database).flushdb()
    return play(heard.stage, f"{shared().url}?db={database}")


@pytest.mark.parametrize(
    ("way", "seen", "counted"),
    [
        ("after", 140, HALF + FIRST_FORTY),
        ("together", 100, HALF),
        ("plain", 240, ALL + FIRST_FORTY),
        ("offset", 240, ALL),
    ],
)
def test_what_is_seen_twice_counts_once_where_the_position_is_kept_with_the_count(
    told: Told, way: str, seen: int, counted: Counter[str]
) -> None:
    assert (told.seen[way], told.counts[way]) == (seen, counted)


def test_a_view_whose_follower_is_killed_has_each_parcel_applied_once(told: Told) -> None:
    assert told.seen["view"] == 200
    depots = ("east", "north", "west")
    assert told.parcels == {f"p{number:03}": depots[number % 3] for number in range(200)}
    assert told.proven["parcels"] == 0


def test_a_follower_that_wakes_when_another_has_its_view_is_refused(told: Told) -> None:
    assert told.stock_by_hand == 5, "the one by hand was not asleep, or did not write when it woke"
    assert (told.zombie_code, told.zombie_said) == (1, "HR-VIEW-STALE")
    assert told.stock == {"lamp": 7}
    assert told.proven["stock"] == 0


def test_the_page_shows_what_is_said(told: Told, heard: Heard) -> None:
    expect_page("workers", heard.lines)
