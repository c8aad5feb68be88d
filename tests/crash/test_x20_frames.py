"""Malformed requests: a quick share of ``bench.faults.x20_frames`` and ``bench.faults.served_frames``."""

from __future__ import annotations

import pytest

from bench.faults import served_frames, x20_frames
from bench.faults.apart import run_apart
from bench.faults.seeds import seeds
from tests.crash.verdicts import expect_caught, expect_held


@pytest.mark.parametrize("seed", seeds(4))
def test_malformed_frames_are_answered_or_closed_and_harm_nobody(seed: int) -> None:
    expect_held(run_apart(x20_frames, seed))


def test_a_broker_that_does_not_foresee_malformed_frames_is_caught() -> None:
    expect_caught(x20_frames, "malformed-check", cases=40)


@pytest.mark.parametrize("seed", seeds(1))
def test_malformed_requests_to_the_server_are_refused_by_their_protocol_and_harm_nobody(seed: int) -> None:
    expect_held(run_apart(served_frames, seed, cases=80, selects=False))


# Without the check of parameters it takes some hundred requests until one shows: that is left to the soak.
@pytest.mark.parametrize("without", ["message-check", "first-message"])
def test_a_server_that_does_not_foresee_malformed_requests_is_caught(without: str) -> None:
    expect_caught(served_frames, without, tries=4, cases=80, selects=False)
