"""What a plan has counted is believed only where it can be right."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.flow.batch import Counts


def told(rows: int, aside: list[str]) -> dict[str, Any]:
    return {"rows": rows, "late": 0, "dead": len(aside), "bytes": 7, "seen_us": 5, "aside": aside}


@pytest.mark.parametrize("rows", [1, 9, 10])
def test_counts_of_at_most_as_many_rows_as_there_are_offsets_are_taken(rows: int) -> None:
    # Compaction and the ends of transactions leave fewer.
    found = Counts.if_right(told(rows, ["a"]), 10)
    assert found == Counts(rows=rows, dead=1, bytes=7, seen_us=5, aside=["a"])


@pytest.mark.parametrize(
    "counted",
    [
        pytest.param({}, id="nothing was counted"),
        pytest.param(told(0, []), id="the input was passed over"),
        pytest.param(told(11, []), id="more than there are: it was read again"),
        pytest.param(told(10, ["a", "b", "a"]), id="one was laid aside twice"),
    ],
)
def test_counts_that_cannot_be_right_are_not_taken(counted: dict[str, Any]) -> None:
    assert Counts.if_right(counted, 10) is None
