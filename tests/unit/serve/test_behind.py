"""How far a store is behind: the log was looked at some moments before the store."""

from __future__ import annotations

import pytest

from headrace.ops.lag.lag import Lag
from headrace.ops.lag.reader import Reader
from headrace.serve.standings.behind import behind_json
from headrace.views.position import Position

_READER = Reader("view", "v", "following")
# It had read nothing, of 3 and 4 records.
_OLD = Lag(
    _READER,
    records=7,
    est_bytes=700,
    age_s=2.5,
    places={("t", 0): 3, ("t", 1): 4},
    ends={("t", 0): 3, ("t", 1): 4},
)


def _told(offsets: dict[int, int], lag: Lag | None = _OLD) -> tuple[object, ...]:
    told = behind_json(lag, Position("t", "id", offsets))
    return told["behind_records"], told["behind_bytes"], told["behind_seconds"], told["partitions"]


@pytest.mark.parametrize(
    ("offsets", "numbers", "ends", "behind"),
    [
        ({}, (7, 700, 2.5), [3, 4], [3, 4]),
        ({0: 3}, (4, 400, 2.5), [3, 4], [0, 4]),
        ({0: 3, 1: 4}, (0, 0, 0.0), [3, 4], [0, 0]),
        ({0: 5, 1: 4}, (0, 0, 0.0), [5, 4], [0, 0]),
    ],
)
def test_what_a_store_took_since_the_log_was_looked_at_is_behind_in_none_of_the_numbers(
    offsets: dict[int, int], numbers: tuple[object, ...], ends: list[int], behind: list[int]
) -> None:
    *found, places = _told(offsets)
    assert tuple(found) == numbers
    assert isinstance(places, list)
    assert ([one["end"] for one in places], [one["behind"] for one in places]) == (ends, behind)


def test_what_is_not_known_of_a_part_is_not_taken_off() -> None:
    partly = Lag(_READER, records=7, est_bytes=700, age_s=2.5, places={("t", 0): 7}, ends={("t", 0): 7})
    assert _told({0: 7, 1: 9}, partly)[:3] == (7, 700, 2.5)
    assert _told({0: 3}, None)[:3] == (None, None, None)
    assert _told({0: 3}, Lag(_READER))[:3] == (None, None, None)
