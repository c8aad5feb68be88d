"""Small requests that must not become large: a quick share of ``bench.faults.x32_amplification``."""

from __future__ import annotations

import pytest

from bench.faults import x32_amplification
from bench.faults.amplifiers import CASES
from bench.faults.apart import run_apart
from bench.faults.seeds import seeds
from headrace.broker.handlers import OFFERED
from tests.crash.verdicts import expect_caught, expect_held


def test_every_api_of_the_broker_has_its_cases() -> None:
    assert set(CASES) == OFFERED


@pytest.mark.parametrize("seed", seeds(1))
def test_no_request_costs_more_than_it_brings_and_64_mb(seed: int) -> None:
    only = x32_amplification.share_of(seed, 20)
    expect_held(run_apart(x32_amplification, seed, only=only, timed=False))


@pytest.mark.parametrize("without", x32_amplification.UNPROTECTED)
def test_a_broker_without_its_limits_is_caught(without: str) -> None:
    expect_caught(x32_amplification, without, tries=3)
