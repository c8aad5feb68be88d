"""Batches whose checksum is right and nothing else: a quick share of ``bench.faults.x21_batches``."""

from __future__ import annotations

import pytest

from bench.faults import x21_batches
from bench.faults.apart import run_apart
from bench.faults.seeds import seeds
from tests.crash.verdicts import expect_caught, expect_held


@pytest.mark.parametrize("seed", seeds(4))
def test_a_lying_batch_is_refused_and_what_was_taken_can_be_read(seed: int) -> None:
    expect_held(run_apart(x21_batches, seed, reads_in_java=False))


def test_a_broker_that_walks_no_records_is_caught() -> None:
    expect_caught(x21_batches, "record-walk", cases=40)


def test_a_broker_that_unpacks_without_a_limit_is_caught_by_its_memory() -> None:
    expect_caught(x21_batches, "unpack-limit", cases=20)
