"""kill -9 at any moment: a quick share of ``bench.faults.x1_kill``."""

from __future__ import annotations

import pytest

from bench.faults import x1_kill
from bench.faults.apart import run_apart
from bench.faults.seeds import seeds
from tests.crash.verdicts import expect_caught, expect_held


@pytest.mark.parametrize("seed", seeds(3))
def test_what_was_acknowledged_survives_kills_and_nothing_is_there_twice(seed: int) -> None:
    expect_held(run_apart(x1_kill, seed))


def test_acks_that_come_before_the_write_are_caught_as_losses() -> None:
    expect_caught(x1_kill, "write-before-ack")


def test_a_start_that_forgets_producers_is_caught_by_twins() -> None:
    expect_caught(x1_kill, "producer-state")
