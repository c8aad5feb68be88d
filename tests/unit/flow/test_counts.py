"""What a plan has counted is believed only where it can be right."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.flow.batch import Counts


def tallies(rows: int) -> dict[str, Any]:
    return {"rows": rows, "late": 0, "dead": 1, "bytes": 7, "seen_us": 5}


@pytest.mark.parametrize("rows", [1, 9, 10])
def test_counts_of_at_most_as_many_rows_as_there_are_offsets_are_taken(rows: int) -> None:
    # Compaction and the ends of transactions leave fewer.
    assert Counts.if_right(tallies(rows), 10) == Counts(rows=rows, dead=1, bytes=7, seen_us=5)


@pytest.mark.parametrize(
    "counted",
    [
        pytest.param({}, id="nothing was counted"),
        pytest.param(tallies(0), id="the input was passed over"),
        pytest.param(tallies(11), id="more than there are: it was read again"),
    ],
)
def test_counts_that_cannot_be_right_are_not_taken(counted: dict[str, Any]) -> None:
    assert Counts.if_right(counted, 10) is None
