"""Drivers of flows that are killed or put to sleep inside a batch, or lose their broker there: a quick share of
``x6_driver``, ``x6_realtime``, ``x13_flow`` and ``x14_flow``.
"""

from __future__ import annotations

from bench.faults import x6_driver, x6_realtime, x13_flow, x14_flow
from bench.faults.apart import run_apart
from tests.crash.verdicts import expect_caught, expect_held

_OUTAGE_S = 2.0


def test_a_driver_killed_inside_a_batch_leaves_every_row_once() -> None:
    expect_held(run_apart(x6_driver, 2))


def test_a_driver_killed_in_real_time_repeats_rows_and_no_view_goes_back() -> None:
    expect_held(run_apart(x6_realtime, 2))


def test_a_sleeping_driver_is_fenced_and_nothing_of_it_is_committed() -> None:
    expect_held(run_apart(x13_flow, 1))


def test_flows_and_followers_outlast_a_broker_that_goes_inside_a_batch() -> None:
    expect_held(run_apart(x14_flow, 1, outage_s=_OUTAGE_S, weighed=False))


def test_rows_that_are_sent_without_a_transaction_are_caught_as_duplicates() -> None:
    expect_caught(
        lambda seed: run_apart(x6_driver, seed, protected=False),
        lambda found: found.duplicated > 0,
        tries=3,
    )
