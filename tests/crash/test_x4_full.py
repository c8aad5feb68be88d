"""A full disk: a quick share of ``bench.faults.x4_full``, with the limit on file sizes that every machine has."""

from __future__ import annotations

import pytest

from bench.faults import x4_full
from bench.faults.apart import run_apart
from bench.faults.seeds import seeds
from tests.crash.verdicts import expect_caught, expect_held


@pytest.mark.parametrize("seed", seeds(3))
def test_writes_are_refused_without_space_and_go_on_with_it(seed: int) -> None:
    expect_held(run_apart(x4_full, seed, kind="limit"))


def test_a_broker_that_does_not_look_at_what_was_written_is_caught() -> None:
    expect_caught(x4_full, "write-results", kind="limit")
