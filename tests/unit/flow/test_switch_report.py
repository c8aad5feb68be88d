"""The limits within which a flow switches to a new generation by itself."""

from __future__ import annotations

import pytest

from headrace.flow.switch.difference import DifferenceCounts
from headrace.flow.switch.report import Shares, SwitchReport
from headrace.settings import SwitchSettings

SAME = DifferenceCounts(
    before=1_000, after=1_000, gone=0, changed=0, new=0, rows_before=1_000, rows_after=1_000
)
NONE = Shares()
LIMITS = SwitchSettings()


def report(counts: DifferenceCounts = SAME, before: Shares = NONE, after: Shares = NONE) -> SwitchReport:
    return SwitchReport("derive", 1, 2, counts, before, after)


def test_a_difference_within_the_limits_needs_no_operator() -> None:
    changed = DifferenceCounts(
        1_000, 1_010, gone=10, changed=990, new=20, rows_before=1_000, rows_after=1_010
    )
    assert report(changed, Shares(1, 1), Shares(2, 2)).exceeded(LIMITS) == []


@pytest.mark.parametrize(
    ("counts", "said"),
    [
        (
            DifferenceCounts(1_000, 989, gone=11, changed=0, new=0, rows_before=1_000, rows_after=989),
            "11 of 1000 keys are gone",
        ),
        # Each row of a key counts: no key is gone, but most of their rows are.
        (
            DifferenceCounts(100, 100, gone=0, changed=100, new=0, rows_before=1_000, rows_after=100),
            "there are 100 rows instead of 1000",
        ),
    ],
)
def test_missing_keys_and_missing_rows_need_an_operator(counts: DifferenceCounts, said: str) -> None:
    assert any(said in text for text in report(counts).exceeded(LIMITS))


def test_fewer_late_records_do_not_allow_more_dead_ones() -> None:
    exceeded = report(before=Shares(late_percent=10), after=Shares(dead_percent=10)).exceeded(LIMITS)
    assert exceeded == ["dead records are 10 % of the input instead of 0 % (limit 1 %)"]
