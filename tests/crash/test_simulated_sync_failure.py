"""Fault X3, a sync that fails once, on simulated disks that lose unsynced data: a few runs of
``simulation.sync_failure``.
"""

from __future__ import annotations

import pytest

from faults.seeds import drawn_seeds
from faults.simulation import sync_failure
from faults.simulation.sync_failure import AIMS, UNPROTECTED, run
from tests.crash.verdicts import expect_caught


@pytest.mark.parametrize("aim", AIMS)
def test_a_failed_sync_blocks_its_own_file_and_no_other(aim: str) -> None:
    for seed in drawn_seeds(2 if aim == "data" else 1):
        outcome = run(seed, aim=aim)
        assert outcome.held, f"{aim}: {outcome.report()}"


@pytest.mark.soak
@pytest.mark.parametrize("protection", UNPROTECTED)
def test_the_oracle_detects_each_missing_protection(protection: str) -> None:
    expect_caught(sync_failure, protection, tries=10, isolated=False)
