"""kill -9 at any time: a few runs of ``faults.log.broker_kill``."""

from __future__ import annotations

import pytest

from faults.log import broker_kill
from faults.run_process import run_in_process
from faults.seeds import drawn_seeds
from tests.crash.verdicts import expect_caught, expect_no_problems


@pytest.mark.parametrize("seed", drawn_seeds(2))
def test_acknowledged_records_survive_kills_without_duplicates(seed: int) -> None:
    expect_no_problems(run_in_process(broker_kill, seed))


def test_the_oracle_reports_losses_if_the_broker_acknowledges_before_it_writes() -> None:
    expect_caught(broker_kill, "write-before-ack")


@pytest.mark.soak
def test_the_oracle_reports_duplicates_if_a_start_forgets_producer_state() -> None:
    expect_caught(broker_kill, "producer-state")
