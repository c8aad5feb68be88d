"""Kills, power losses, failing and damaged disks during compaction: quick shares of the runs in ``bench/faults``."""

from __future__ import annotations

from types import ModuleType

import pytest

from bench.faults import x1_compaction, x2_compaction, x3_compaction, x5_compaction
from bench.faults.apart import run_apart
from bench.faults.seeds import seeds
from tests.crash.verdicts import expect_caught, expect_held


@pytest.mark.parametrize("seed", seeds(1))
def test_a_killed_compaction_loses_no_key_s_newest_value(seed: int) -> None:
    expect_held(run_apart(x1_compaction, seed, kills=(2, 3)))


@pytest.mark.parametrize("seed", seeds(4))
def test_a_power_loss_during_compaction_loses_no_key_s_newest_value(seed: int) -> None:
    expect_held(x2_compaction.run(seed, lives=6))


@pytest.mark.parametrize("seed", seeds(2))
def test_a_disk_that_fails_during_compaction_is_not_noticed_by_clients(seed: int) -> None:
    expect_held(run_apart(x3_compaction, seed))


@pytest.mark.parametrize("seed", seeds(1))
def test_damage_to_a_compacted_partition_is_told_and_never_served(seed: int) -> None:
    expect_held(x5_compaction.run(seed, cases=4))


def test_keys_that_are_taken_for_each_other_are_caught() -> None:
    expect_caught(x1_compaction, "wide-hash")


@pytest.mark.parametrize("protection", x2_compaction.UNPROTECTED)
def test_without_its_protection_a_power_loss_is_caught(protection: str) -> None:
    expect_caught(x2_compaction, protection, tries=10, apart=False)


@pytest.mark.parametrize(
    ("module", "protection"), [(x3_compaction, "failed-sync-counts"), (x5_compaction, "check-on-read")]
)
def test_without_its_protection_a_bad_disk_is_caught(module: ModuleType, protection: str) -> None:
    expect_caught(module, protection, tries=10)
