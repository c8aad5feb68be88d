"""X5, damaged files, on simulated disks; ``bench/faults/x5_damage.py`` says what must hold."""

from __future__ import annotations

import pytest

from bench.faults import x5_damage
from bench.faults.seeds import seeds
from bench.faults.sim_damage import Harm
from bench.faults.x5_damage import CASES, UNPROTECTED, run
from tests.crash.verdicts import expect_caught


@pytest.mark.parametrize(("kind", "harm"), CASES, ids=[f"{kind}-{harm.name}" for kind, harm in CASES])
def test_damage_is_cut_reported_mended_or_refused_by_what_it_hits(kind: str, harm: Harm) -> None:
    for seed in seeds(1):
        outcome = run(seed, case=(kind, harm))
        assert outcome.held, outcome.says()


@pytest.mark.parametrize("protection", UNPROTECTED)
def test_without_its_protection_the_oracle_objects(protection: str) -> None:
    expect_caught(x5_damage, protection, tries=10, apart=False)
