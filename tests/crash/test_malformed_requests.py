"""Malformed requests: a small subset of the cases of ``faults.log.malformed_frames`` and
``faults.serve.malformed_requests``.
"""

from __future__ import annotations

import pytest

from faults.log import malformed_frames
from faults.run_process import run_in_process
from faults.seeds import drawn_seeds
from faults.serve import malformed_requests
from tests.crash.verdicts import expect_caught, expect_no_problems


@pytest.mark.parametrize("seed", drawn_seeds(2))
def test_the_broker_answers_or_disconnects_a_malformed_frame_and_serves_other_clients(seed: int) -> None:
    expect_no_problems(run_in_process(malformed_frames, seed))


@pytest.mark.soak
def test_the_oracle_detects_a_broker_that_does_not_handle_malformed_frames() -> None:
    expect_caught(malformed_frames, "malformed-check", cases=40)


@pytest.mark.parametrize("seed", drawn_seeds(1))
def test_the_server_rejects_malformed_requests_with_a_protocol_error_and_serves_other_clients(
    seed: int,
) -> None:
    expect_no_problems(run_in_process(malformed_requests, seed, cases=80, selects=False))


# Without the check, only one in several hundred requests reveals the fault, so this test runs only in ``make
# soak``.
@pytest.mark.soak
@pytest.mark.parametrize("without", ["message-check", "first-message"])
def test_the_oracle_detects_a_server_that_does_not_handle_malformed_requests(without: str) -> None:
    expect_caught(malformed_requests, without, tries=4, cases=80, selects=False)
