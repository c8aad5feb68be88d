"""Stores that go, are wiped or are restored under a follower: a quick share of ``bench.faults.x17_store``."""

from __future__ import annotations

import pytest

from bench.faults import x17_store
from bench.faults.apart import run_apart
from bench.faults.seeds import seeds
from bench.faults.store_kinds import KINDS
from tests.crash.verdicts import expect_caught, expect_held


@pytest.mark.parametrize("way", x17_store.WAYS)
@pytest.mark.parametrize("store", list(KINDS))
@pytest.mark.parametrize("seed", seeds(1))
def test_a_view_outlasts_what_happens_to_its_store(store: str, way: str, seed: int) -> None:
    expect_held(run_apart(x17_store, seed, store=store, way=way, gone_s=1.5))


# A SQLite file that was replaced is opened anew, and where it is is asked for then, whatever is left out later.
@pytest.mark.parametrize("store", [name for name in KINDS if name != "sqlite"])
def test_a_follower_that_does_not_look_where_its_store_is_is_caught(store: str) -> None:
    expect_caught(x17_store, "position", store=store)
