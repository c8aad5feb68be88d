"""Small requests with large effects: a small subset of the cases of ``faults.log.amplification``."""

from __future__ import annotations

import pytest

from faults.log import amplification
from faults.log.amplifiers import CASES
from faults.run_process import run_in_process
from faults.seeds import seeds
from headrace.broker.handlers import SUPPORTED_APIS
from tests.crash.verdicts import expect_caught, expect_no_problems


def test_every_api_of_the_broker_has_its_cases() -> None:
    assert set(CASES) == SUPPORTED_APIS


@pytest.mark.parametrize("seed", seeds(1))
def test_no_request_costs_more_than_its_bytes_plus_64_mb(seed: int) -> None:
    selected_cases = amplification.random_cases(seed, 20)
    expect_no_problems(
        run_in_process(amplification, seed, selected_cases=selected_cases, measures_blocking=False)
    )


@pytest.mark.soak
@pytest.mark.parametrize("without", amplification.UNPROTECTED)
def test_the_oracle_detects_a_broker_without_its_limits(without: str) -> None:
    expect_caught(amplification, without, tries=3)
