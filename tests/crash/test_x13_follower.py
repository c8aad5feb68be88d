"""Followers that sleep through their own replacement, or are killed: a quick share of ``bench.faults.x13_follower`` and
``bench.faults.follower_killed``.
"""

from __future__ import annotations

import pytest

from bench.faults import follower_killed, x13_follower
from bench.faults.apart import run_apart
from bench.faults.seeds import seeds
from bench.faults.store_kinds import KINDS
from tests.crash.verdicts import expect_caught, expect_held


@pytest.mark.parametrize("store", list(KINDS))
@pytest.mark.parametrize("seed", seeds(1))
def test_a_zombie_follower_is_refused_and_changes_nothing(seed: int, store: str) -> None:
    expect_held(run_apart(x13_follower, seed, store=store))


@pytest.mark.parametrize("store", list(KINDS))
def test_a_store_that_does_not_fence_is_caught(store: str) -> None:
    expect_caught(x13_follower, "fence", store=store)


@pytest.mark.parametrize("store", list(KINDS))
@pytest.mark.parametrize("seed", seeds(1))
def test_a_killed_follower_leaves_whole_batches_and_loses_no_dead_letter(seed: int, store: str) -> None:
    expect_held(run_apart(follower_killed, seed, store=store))


def test_rows_and_positions_that_do_not_commit_together_are_caught() -> None:
    expect_caught(follower_killed, "together", store="sqlite")


def test_dead_letters_that_come_after_the_position_are_caught() -> None:
    expect_caught(follower_killed, "dead letters first", store="sqlite")
