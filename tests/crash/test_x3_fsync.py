"""A sync that fails once, in the real kernel: a quick share of ``bench.faults.x3_fsync``."""

from __future__ import annotations

import pytest

from bench.faults import x3_fsync
from bench.faults.apart import run_apart
from bench.faults.seeds import seeds
from tests.crash.verdicts import expect_caught, expect_held


@pytest.mark.parametrize("seed", seeds(1))
@pytest.mark.parametrize("aim", x3_fsync.AIMS)
def test_a_failed_sync_is_told_and_nothing_is_acknowledged_over_it(aim: str, seed: int) -> None:
    expect_held(run_apart(x3_fsync, seed, aim=aim))


def test_a_broker_that_ignores_failed_syncs_is_caught_by_its_acks() -> None:
    expect_caught(x3_fsync, "sync-errors")
