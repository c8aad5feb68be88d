"""A full disk: ``faults.log.full_disk`` with a limit on file sizes, which works on every machine."""

from __future__ import annotations

import pytest

from faults.log import full_disk
from faults.run_process import run_in_process
from faults.seeds import drawn_seeds
from tests.crash.verdicts import expect_caught, expect_no_problems


@pytest.mark.parametrize("seed", drawn_seeds(2))
def test_the_broker_refuses_writes_on_a_full_disk_and_accepts_them_when_space_is_free(seed: int) -> None:
    expect_no_problems(run_in_process(full_disk, seed, kind="limit"))


@pytest.mark.soak
def test_the_oracle_detects_a_broker_that_ignores_the_results_of_writes() -> None:
    expect_caught(full_disk, "write-results", kind="limit")
