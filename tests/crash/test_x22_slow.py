"""Clients that are slow, and many: a quick share of ``bench.faults.x22_slow`` and ``bench.faults.served_slow``."""

from __future__ import annotations

import pytest

from bench.faults import served_slow, x22_slow
from bench.faults.apart import run_apart
from bench.faults.seeds import seeds
from tests.crash.verdicts import expect_caught, expect_held


@pytest.mark.parametrize("seed", seeds(1))
def test_slow_and_idle_clients_are_closed_in_time_and_a_good_one_is_served(seed: int) -> None:
    expect_held(run_apart(x22_slow, seed, idle=500, slow=12, slow_s=1.5, every_s=1.2, idle_s=6.0))


@pytest.mark.parametrize("without", x22_slow.UNPROTECTED)
def test_a_broker_that_leaves_slow_clients_alone_is_caught(without: str) -> None:
    """It closes nobody, piles up answers, or lets silent scrapers keep others out."""
    expect_caught(x22_slow, without, tries=2)


@pytest.mark.parametrize("seed", seeds(1))
def test_slow_callers_of_the_server_are_closed_in_time_on_every_port(seed: int) -> None:
    expect_held(run_apart(served_slow, seed, idle=200, receive_s=1.5, every_s=1.25, reads=False))


@pytest.mark.parametrize("without", ["http-sweep", "pg-deadlines"])
def test_a_server_without_deadlines_is_caught(without: str) -> None:
    expect_caught(served_slow, without, tries=2)
