"""A store stops, is wiped or is restored while a follower writes to it: a few runs of ``faults.views.store_loss``."""

from __future__ import annotations

import itertools

import pytest

from faults.run_process import run_in_process
from faults.seeds import seeds
from faults.stores.registry import KINDS
from faults.views import store_loss
from tests.crash.verdicts import expect_caught, expect_no_problems

# Each store and each kind of loss occurs at least once; ``make soak`` runs all pairs.
CASES = [*zip(KINDS, itertools.cycle(store_loss.WAYS), strict=False)]


@pytest.mark.parametrize(("store", "way"), CASES)
@pytest.mark.parametrize("seed", seeds(1))
def test_a_view_survives_the_loss_wipe_or_restore_of_its_store(store: str, way: str, seed: int) -> None:
    expect_no_problems(run_in_process(store_loss, seed, store=store, way=way, gone_s=1.5))


# SQLite is excluded: even without the protection, the follower reopens a replaced file and reads its
# position.
@pytest.mark.soak
@pytest.mark.parametrize("store", [name for name in KINDS if name != "sqlite"])
def test_the_oracle_detects_a_follower_that_does_not_check_the_position_in_its_store(store: str) -> None:
    expect_caught(store_loss, "position", store=store)
