"""Everything is killed and started again while subscribers follow: a share of ``bench.faults.subscribers_killed``."""

from __future__ import annotations

import pytest

from bench.faults import subscribers_killed
from bench.faults.apart import run_apart
from bench.faults.seeds import seeds
from tests.crash.verdicts import expect_caught, expect_held


@pytest.mark.parametrize("seed", seeds(1))
def test_each_subscriber_sees_every_batch_once_and_ends_with_the_rows_of_the_view(seed: int) -> None:
    found = expect_held(run_apart(subscribers_killed, seed, kills=("all", "log"), subscribers=6))
    assert found.figures["resumed"] >= 6


def test_a_server_that_goes_on_from_elsewhere_is_caught() -> None:
    expect_caught(subscribers_killed, "resuming", tries=4, kills=("server",), subscribers=4)
