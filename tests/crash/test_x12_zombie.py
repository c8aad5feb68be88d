"""A producer that sleeps through its own replacement: a quick share of ``bench.faults.x12_zombie``."""

from __future__ import annotations

import pytest

from bench.faults import x12_zombie
from bench.faults.apart import run_apart
from bench.faults.seeds import seeds
from tests.crash.verdicts import expect_caught, expect_held


@pytest.mark.parametrize("seed", seeds(4))
def test_a_zombie_is_fenced_and_nothing_of_it_joins_the_next_transaction(seed: int) -> None:
    expect_held(run_apart(x12_zombie, seed))


def test_a_broker_that_does_not_fence_is_caught() -> None:
    expect_caught(x12_zombie, "fencing")
