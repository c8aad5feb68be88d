"""The broker is paused and resumed, then killed and restarted: ``faults.log.broker_outage`` with short outages."""

from __future__ import annotations

import pytest

from faults.log import broker_outage
from faults.run_process import run_in_process
from faults.seeds import seeds
from tests.crash.verdicts import expect_caught, expect_no_problems


@pytest.mark.parametrize("seed", seeds(1))
def test_all_clients_wait_for_a_paused_broker_and_resume(seed: int) -> None:
    expect_no_problems(run_in_process(broker_outage, seed, outage_s=3.0))


@pytest.mark.soak
def test_the_oracle_detects_a_coordinator_that_expires_members_after_its_own_pause() -> None:
    expect_caught(broker_outage, "stall-notice", tries=4)
