"""Events in disorder, late, twice and with absurd times: a quick share of ``bench.faults.x9_order`` and
``bench.faults.x10_absurd``.
"""

from __future__ import annotations

import pytest

from bench.faults import x9_order, x10_absurd
from tests.crash.verdicts import expect_caught, expect_held


def test_every_event_is_counted_or_late_or_dead_and_what_is_derived_is_what_the_counted_come_to() -> None:
    expect_held(x9_order.run(1))


def test_absurd_times_are_dead_letters_and_move_no_watermark() -> None:
    expect_held(x10_absurd.run(2))


@pytest.mark.parametrize("without", x9_order.UNPROTECTED)
def test_lateness_that_is_not_told_or_is_left_to_spark_is_caught(without: str) -> None:
    expect_caught(
        lambda seed: x9_order.run(seed + 1, protected=False, without=without), lambda one: one.caught, 2
    )


@pytest.mark.parametrize("without", x10_absurd.UNPROTECTED)
def test_absurd_times_that_are_taken_are_caught(without: str) -> None:
    expect_caught(
        lambda seed: x10_absurd.run(seed + 1, protected=False, without=without, rounds=1),
        lambda one: one.caught,
        2,
    )
