"""Replaced and killed followers: a few runs of ``views.zombie_follower`` and ``views.follower_kill``."""

from __future__ import annotations

import pytest

from faults.run_process import run_in_process
from faults.seeds import seeds
from faults.stores.registry import KINDS
from faults.views import follower_kill, zombie_follower
from tests.crash.verdicts import expect_caught, expect_no_problems


@pytest.mark.parametrize("store", list(KINDS))
@pytest.mark.parametrize("seed", seeds(1))
def test_a_zombie_follower_is_fenced_and_changes_nothing(seed: int, store: str) -> None:
    expect_no_problems(run_in_process(zombie_follower, seed, store=store))


@pytest.mark.soak
@pytest.mark.parametrize("store", list(KINDS))
def test_the_oracle_detects_a_store_that_does_not_fence(store: str) -> None:
    expect_caught(zombie_follower, "fence", store=store)


@pytest.mark.parametrize("store", list(KINDS))
@pytest.mark.parametrize("seed", seeds(1))
def test_a_killed_follower_leaves_only_whole_batches_and_loses_no_dead_letter(seed: int, store: str) -> None:
    expect_no_problems(run_in_process(follower_kill, seed, store=store))


@pytest.mark.soak
def test_the_oracle_detects_rows_and_positions_that_do_not_commit_together() -> None:
    expect_caught(follower_kill, "atomic-commit", store="sqlite")


@pytest.mark.soak
def test_the_oracle_detects_dead_letters_that_are_written_after_the_position() -> None:
    expect_caught(follower_kill, "dead-letters-first", store="sqlite")
