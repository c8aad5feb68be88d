"""Backups of killed brokers, restored and read: a few short runs of ``faults.log.backup_kill``."""

from __future__ import annotations

import pytest

from faults.log import backup_kill
from faults.run_process import run_in_process
from faults.seeds import seeds
from tests.crash.verdicts import expect_caught, expect_no_problems


@pytest.mark.parametrize("seed", seeds(1))
def test_a_restore_point_has_all_earlier_acknowledged_records_and_no_partial_transaction(
    seed: int,
) -> None:
    expect_no_problems(run_in_process(backup_kill, seed, kills=(1, 2), restores=2))


@pytest.mark.soak
@pytest.mark.parametrize("without", backup_kill.UNPROTECTED)
def test_the_oracle_detects_a_backup_without_its_protection(without: str) -> None:
    expect_caught(backup_kill, without, kills=(1, 2), restores=2)
