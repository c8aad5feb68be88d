"""A reader that is far behind, and one whose offset was deleted: a few runs of ``faults.log.lagging_reader``."""

from __future__ import annotations

import pytest

from faults.log import lagging_reader
from faults.run_process import run_in_process
from faults.seeds import seeds
from tests.crash.verdicts import expect_caught, expect_no_problems


@pytest.mark.parametrize("seed", seeds(3))
def test_a_lagging_reader_is_served_until_its_offset_is_deleted_and_then_gets_an_error(seed: int) -> None:
    expect_no_problems(run_in_process(lagging_reader, seed, records=100_000))


@pytest.mark.soak
def test_the_oracle_detects_a_broker_that_silently_moves_a_reader() -> None:
    expect_caught(lagging_reader, "range-check", records=100_000)
