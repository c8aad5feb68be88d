"""Batches that are invalid except for their checksum: a few runs of ``faults.log.invalid_batches``."""

from __future__ import annotations

import pytest

from faults.log import invalid_batches
from faults.run_process import run_in_process
from faults.seeds import drawn_seeds
from tests.crash.verdicts import expect_caught, expect_no_problems


# The fixed seed has a record whose attributes have the top bit set.
@pytest.mark.parametrize("seed", [*drawn_seeds(1), 1706620893])
def test_invalid_batches_are_refused_and_accepted_batches_are_readable(seed: int) -> None:
    expect_no_problems(run_in_process(invalid_batches, seed, reads_in_java=False))


def test_the_oracle_detects_a_broker_that_does_not_validate_records() -> None:
    expect_caught(invalid_batches, "record-walk", cases=40)


@pytest.mark.soak
def test_the_oracle_detects_unlimited_decompression_by_memory_use() -> None:
    expect_caught(invalid_batches, "unpack-limit", cases=20)
