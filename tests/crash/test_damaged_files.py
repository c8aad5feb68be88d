"""Fault X5, damaged files, on simulated disks: one run for each case of ``faults.simulation.damaged_files``."""

from __future__ import annotations

import pytest

from faults.seeds import drawn_seeds
from faults.simulation import damaged_files
from faults.simulation.damage import Damage
from faults.simulation.damaged_files import CASES, UNPROTECTED, run
from tests.crash.verdicts import expect_caught


@pytest.mark.parametrize(("kind", "damage"), CASES, ids=[f"{kind}-{damage.name}" for kind, damage in CASES])
def test_damage_is_truncated_repaired_reported_or_refused_depending_on_the_file_type(
    kind: str, damage: Damage
) -> None:
    for seed in drawn_seeds(1):
        outcome = run(seed, case=(kind, damage))
        assert outcome.held, outcome.report()


def test_a_batch_whose_damaged_header_claims_later_offsets_does_not_hide_them() -> None:
    # In this run, the flipped bit is in the field of the last offset.
    outcome = run(
        1_390_859_364, case=next(case for case in CASES if (case[0], case[1].name) == ("log", "flip"))
    )
    assert outcome.held, outcome.report()


@pytest.mark.soak
@pytest.mark.parametrize("protection", UNPROTECTED)
def test_the_oracle_detects_each_missing_protection(protection: str) -> None:
    expect_caught(damaged_files, protection, tries=10, isolated=False)
