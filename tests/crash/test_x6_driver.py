"""Drivers of flows that are killed or put to sleep inside a batch: a quick share of ``x6_driver`` and ``x13_flow``."""

from __future__ import annotations

from bench.faults import x6_driver, x13_flow
from bench.faults.apart import run_apart
from tests.crash.verdicts import expect_caught, expect_held


def test_a_driver_killed_inside_a_batch_leaves_every_row_once() -> None:
    expect_held(run_apart(x6_driver, 1, kills=(1, 2)))


def test_a_sleeping_driver_is_fenced_and_nothing_of_it_is_committed() -> None:
    expect_held(run_apart(x13_flow, 1))


def test_rows_that_are_sent_without_a_transaction_are_caught_as_duplicates() -> None:
    expect_caught(
        lambda seed: run_apart(x6_driver, seed, protected=False, kills=(1, 1)),
        lambda found: found.duplicated > 0,
        tries=3,
    )
