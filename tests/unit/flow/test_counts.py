"""The counts of a plan are used only if they are plausible."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.flow.rejected import Counts


def tallies(rows: int) -> dict[str, Any]:
    return {"rows": rows, "late": 0, "dead": 1, "bytes": 7, "seen_us": 5}


@pytest.mark.parametrize("rows", [1, 9, 10])
def test_counts_with_at_most_one_row_per_offset_are_accepted(rows: int) -> None:
    # Compaction and transaction markers leave fewer records than offsets.
    assert Counts.if_plausible(tallies(rows), 10) == Counts(rows=rows, dead=1, bytes=7, seen_us=5)


@pytest.mark.parametrize(
    "counted",
    [
        pytest.param({}, id="nothing was counted"),
        pytest.param(tallies(0), id="the plan skipped the input"),
        pytest.param(tallies(11), id="more rows than offsets: records were read twice"),
    ],
)
def test_counts_that_cannot_be_right_are_rejected(counted: dict[str, Any]) -> None:
    assert Counts.if_plausible(counted, 10) is None
