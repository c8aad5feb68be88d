"""Scripts in displayed data, and requests from other sites: a small run of ``faults.serve.browser_attacks`` in
Chromium.
"""

from __future__ import annotations

import pytest

from faults.run_process import run_in_process
from faults.seeds import seeds
from faults.serve import browser_attacks
from tests.crash.verdicts import expect_caught, expect_no_problems


@pytest.mark.parametrize("seed", seeds(1))
def test_pages_run_no_script_in_data_and_the_server_rejects_other_origins_and_hosts(seed: int) -> None:
    expect_no_problems(run_in_process(browser_attacks, seed, visits=16))


@pytest.mark.soak
@pytest.mark.parametrize("without", sorted(browser_attacks.UNPROTECTED))
def test_the_oracle_detects_a_server_without_one_protection_of_its_pages(without: str) -> None:
    expect_caught(browser_attacks, without, tries=1, visits=1)
