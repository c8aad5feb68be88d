"""X3, a sync fails once, on simulated disks that forget; ``bench/faults/x3_sync_sim.py`` says what must hold."""

from __future__ import annotations

import pytest

from bench.faults import x3_sync_sim
from bench.faults.seeds import seeds
from bench.faults.x3_sync_sim import AIMS, UNPROTECTED, run
from tests.crash.verdicts import expect_caught


@pytest.mark.parametrize("aim", AIMS)
def test_a_failed_sync_fences_what_it_was_for_and_nothing_else(aim: str) -> None:
    for seed in seeds(2 if aim == "data" else 1):
        outcome = run(seed, aim=aim)
        assert outcome.held, f"{aim}: {outcome.says()}"


@pytest.mark.parametrize("protection", UNPROTECTED)
def test_without_its_protection_the_oracle_objects(protection: str) -> None:
    expect_caught(x3_sync_sim, protection, tries=10, apart=False)
