"""The lag of a view whose store was queried after the log was sampled."""

from __future__ import annotations

import pytest

from headrace.ops.lag.lag import Lag
from headrace.ops.lag.reader import Reader
from headrace.serve.monitor.view_status import PartitionLag, lag_behind
from headrace.stores.position import Position

_READER = Reader("view", "v", "following")
# The partitions have 3 and 4 records, and the view has read none of them.
_SAMPLED_LAG = Lag(
    _READER,
    records=7,
    est_bytes=700,
    age_s=2.5,
    unread={("t", 0): 3, ("t", 1): 4},
    ends={("t", 0): 3, ("t", 1): 4},
)


def _behind(
    offsets: dict[int, int], lag: Lag | None = _SAMPLED_LAG
) -> tuple[tuple[object, ...], list[PartitionLag]]:
    behind = lag_behind(lag, Position("t", "id", offsets))
    return (behind.records, behind.bytes, behind.seconds), behind.partitions


@pytest.mark.parametrize(
    ("offsets", "numbers", "ends", "behind"),
    [
        ({}, (7, 700, 2.5), [3, 4], [3, 4]),
        ({0: 3}, (4, 400, 2.5), [3, 4], [0, 4]),
        ({0: 3, 1: 4}, (0, 0, 0.0), [3, 4], [0, 0]),
        ({0: 5, 1: 4}, (0, 0, 0.0), [5, 4], [0, 0]),
    ],
)
def test_records_applied_after_the_log_was_sampled_reduce_records_bytes_and_seconds(
    offsets: dict[int, int], numbers: tuple[object, ...], ends: list[int], behind: list[int]
) -> None:
    totals, partitions = _behind(offsets)
    assert totals == numbers
    assert [partition.end for partition in partitions] == ends
    assert [partition.behind for partition in partitions] == behind


def test_nothing_is_subtracted_while_the_lag_of_a_partition_is_unknown() -> None:
    partial_lag = Lag(_READER, records=7, est_bytes=700, age_s=2.5, unread={("t", 0): 7}, ends={("t", 0): 7})
    assert _behind({0: 7, 1: 9}, partial_lag)[0] == (7, 700, 2.5)
    assert _behind({0: 3}, None)[0] == (None, None, None)
    assert _behind({0: 3}, Lag(_READER))[0] == (None, None, None)
