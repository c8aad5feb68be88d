"""A sync that fails once, on a real file system: a few runs of ``faults.log.sync_failure``."""

from __future__ import annotations

import pytest

from faults.log import sync_failure
from faults.run_process import run_in_process
from faults.seeds import seeds
from tests.crash.verdicts import expect_caught, expect_no_problems


@pytest.mark.parametrize("seed", seeds(1))
@pytest.mark.parametrize("aim", sync_failure.AIMS)
def test_clients_get_an_error_and_no_ack_after_a_failed_sync(aim: str, seed: int) -> None:
    expect_no_problems(run_in_process(sync_failure, seed, aim=aim))


@pytest.mark.soak
def test_the_oracle_detects_acks_of_a_broker_that_ignores_failed_syncs() -> None:
    expect_caught(sync_failure, "sync-errors")
