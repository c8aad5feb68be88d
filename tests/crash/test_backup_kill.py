"""Backups of brokers that are killed, restored and read: a quick share of ``bench.faults.backup_kill``."""

from __future__ import annotations

import pytest

from bench.faults import backup_kill
from bench.faults.apart import run_apart
from bench.faults.seeds import seeds
from tests.crash.verdicts import expect_caught, expect_held


@pytest.mark.parametrize("seed", seeds(1))
def test_any_moment_restored_has_what_was_acknowledged_before_it_and_no_halves(seed: int) -> None:
    expect_held(run_apart(backup_kill, seed, kills=(1, 2), restores=2))


@pytest.mark.parametrize("without", backup_kill.UNPROTECTED)
def test_a_backup_without_its_protection_is_caught(without: str) -> None:
    expect_caught(backup_kill, without, kills=(1, 2), restores=2)
