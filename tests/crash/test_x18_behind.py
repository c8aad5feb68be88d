"""A reader far behind, whose place was deleted: a quick share of ``bench.faults.x18_behind``."""

from __future__ import annotations

import pytest

from bench.faults import x18_behind
from bench.faults.apart import run_apart
from bench.faults.seeds import seeds
from tests.crash.verdicts import expect_caught, expect_held


def test_a_reader_a_million_behind_is_served_and_one_past_retention_is_told() -> None:
    expect_held(run_apart(x18_behind, seeds(1)[0], records=1_000_000))


@pytest.mark.parametrize("seed", seeds(2, first=2))
def test_a_reader_whose_place_was_deleted_is_never_moved_in_silence(seed: int) -> None:
    expect_held(run_apart(x18_behind, seed, records=100_000))


def test_a_broker_that_moves_readers_in_silence_is_caught() -> None:
    expect_caught(x18_behind, "range-check", records=100_000)
