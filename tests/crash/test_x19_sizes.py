"""Claims of size that are lies: a quick share of ``bench.faults.x19_sizes``."""

from __future__ import annotations

import pytest

from bench.faults import x19_sizes
from bench.faults.apart import run_apart
from bench.faults.seeds import seeds
from tests.crash.verdicts import expect_caught, expect_held


@pytest.mark.parametrize("seed", seeds(1))
def test_no_claim_of_size_is_believed_before_the_bytes_are_there(seed: int) -> None:
    expect_held(run_apart(x19_sizes, seed))


@pytest.mark.parametrize("without", x19_sizes.UNPROTECTED)
def test_a_broker_that_believes_sizes_is_caught_by_its_memory(without: str) -> None:
    expect_caught(x19_sizes, without)
