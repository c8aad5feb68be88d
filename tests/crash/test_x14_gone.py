"""The broker stopped and woken, killed and started again: ``bench.faults.x14_gone`` with short outages."""

from __future__ import annotations

import pytest

from bench.faults import x14_gone
from bench.faults.apart import run_apart
from bench.faults.seeds import seeds
from tests.crash.verdicts import expect_caught, expect_held


@pytest.mark.parametrize("seed", seeds(1))
def test_all_parts_wait_for_a_broker_that_is_gone_and_go_on(seed: int) -> None:
    expect_held(run_apart(x14_gone, seed, outage_s=3.0))


def test_a_coordinator_that_expires_members_for_its_own_absence_is_caught() -> None:
    expect_caught(x14_gone, "stall-notice", tries=4)
