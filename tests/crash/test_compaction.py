"""Kills, power losses, and failing or damaged disks during compaction: a few of the runs in ``faults``."""

from __future__ import annotations

from types import ModuleType

import pytest

from faults.log import kill_in_compaction
from faults.run_process import run_in_process
from faults.seeds import drawn_seeds
from faults.simulation import damaged_compacted_files, power_loss_in_compaction, sync_failure_in_compaction
from tests.crash.verdicts import expect_caught, expect_no_problems


@pytest.mark.parametrize("seed", drawn_seeds(1))
def test_a_kill_during_compaction_loses_no_newest_value_of_a_key(seed: int) -> None:
    expect_no_problems(run_in_process(kill_in_compaction, seed, kills=(2, 3)))


@pytest.mark.parametrize("seed", drawn_seeds(3))
def test_a_power_loss_during_compaction_loses_no_newest_value_of_a_key(seed: int) -> None:
    expect_no_problems(power_loss_in_compaction.run(seed, processes=6))


@pytest.mark.parametrize("seed", drawn_seeds(1))
def test_clients_do_not_notice_a_disk_error_during_compaction(seed: int) -> None:
    expect_no_problems(run_in_process(sync_failure_in_compaction, seed))


@pytest.mark.parametrize("seed", drawn_seeds(1))
def test_damage_to_a_compacted_partition_is_reported_and_never_served(seed: int) -> None:
    expect_no_problems(damaged_compacted_files.run(seed, cases=4))


@pytest.mark.soak
def test_the_oracle_detects_a_compaction_that_confuses_keys() -> None:
    expect_caught(kill_in_compaction, "wide-hash")


@pytest.mark.soak
@pytest.mark.parametrize("protection", power_loss_in_compaction.UNPROTECTED)
def test_the_oracle_detects_a_missing_protection_after_a_power_loss(protection: str) -> None:
    expect_caught(power_loss_in_compaction, protection, tries=10, isolated=False)


@pytest.mark.soak
@pytest.mark.parametrize(
    ("module", "protection"),
    [(sync_failure_in_compaction, "failed-sync-counts"), (damaged_compacted_files, "check-on-read")],
)
def test_the_oracle_detects_a_missing_protection_on_a_bad_disk(module: ModuleType, protection: str) -> None:
    expect_caught(module, protection, tries=10)
