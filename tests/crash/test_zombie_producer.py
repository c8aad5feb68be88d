"""A producer that is paused while it is replaced: a few runs of ``faults.log.zombie_producer``."""

from __future__ import annotations

import pytest

from faults.log import zombie_producer
from faults.run_process import run_in_process
from faults.seeds import seeds
from tests.crash.verdicts import expect_caught, expect_no_problems


@pytest.mark.parametrize("seed", seeds(4))
def test_a_zombie_producer_is_fenced_and_none_of_its_records_join_the_next_transaction(seed: int) -> None:
    expect_no_problems(run_in_process(zombie_producer, seed))


def test_the_oracle_detects_a_broker_that_does_not_fence_producers() -> None:
    expect_caught(zombie_producer, "fencing")
