"""False sizes in requests: a small subset of the cases of ``size_claims`` in ``faults/log`` and ``faults/serve``."""

from __future__ import annotations

import pytest

from faults.log import size_claims as broker_claims
from faults.run_process import run_in_process
from faults.seeds import seeds
from faults.serve import size_claims as serve_claims
from tests.crash.verdicts import expect_caught, expect_no_problems


@pytest.mark.parametrize("seed", seeds(1))
def test_the_broker_allocates_no_memory_for_bytes_that_have_not_arrived(seed: int) -> None:
    expect_no_problems(run_in_process(broker_claims, seed, cases_max=400))


@pytest.mark.soak
@pytest.mark.parametrize("without", broker_claims.UNPROTECTED)
def test_the_oracle_detects_by_memory_use_a_broker_that_trusts_sizes(without: str) -> None:
    expect_caught(broker_claims, without)


@pytest.mark.parametrize("seed", seeds(1))
def test_the_server_rejects_each_false_size_with_the_error_code_of_the_protocol(seed: int) -> None:
    expect_no_problems(run_in_process(serve_claims, seed, cases_max=25, selects=False))


@pytest.mark.soak
@pytest.mark.parametrize("without", serve_claims.UNPROTECTED)
def test_the_oracle_detects_a_server_that_trusts_sizes(without: str) -> None:
    expect_caught(serve_claims, without, tries=2)
