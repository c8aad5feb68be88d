"""Kills under subscribers: a short run of ``faults.serve.kill_under_subscribers``."""

from __future__ import annotations

import pytest

from faults.run_process import run_in_process
from faults.seeds import seeds
from faults.serve import kill_under_subscribers
from tests.crash.verdicts import expect_caught, expect_no_problems


@pytest.mark.parametrize("seed", seeds(1))
def test_each_subscriber_sees_every_batch_once_and_ends_with_the_rows_of_the_view(seed: int) -> None:
    outcome = expect_no_problems(
        run_in_process(kill_under_subscribers, seed, kills=("all", "log"), subscribers=6)
    )
    assert outcome.figures["resumed"] >= 6


@pytest.mark.soak
def test_the_fault_test_catches_a_server_that_resumes_at_a_wrong_position() -> None:
    expect_caught(kill_under_subscribers, "resuming", tries=4, kills=("server",), subscribers=4)
