"""Clients that are slow, and many: a quick share of ``bench.faults.x22_slow``."""

from __future__ import annotations

import pytest

from bench.faults import x22_slow
from bench.faults.apart import run_apart
from bench.faults.seeds import seeds
from tests.crash.verdicts import expect_caught, expect_held


@pytest.mark.parametrize("seed", seeds(1))
def test_slow_and_idle_clients_are_closed_in_time_and_a_good_one_is_served(seed: int) -> None:
    expect_held(run_apart(x22_slow, seed))


def test_a_broker_that_closes_nobody_is_caught() -> None:
    expect_caught(x22_slow, "sweep")


def test_a_broker_that_piles_up_answers_is_caught_by_its_memory() -> None:
    expect_caught(x22_slow, "answer-limit")
