"""Frames that are no requests: a quick share of ``bench.faults.x20_frames``."""

from __future__ import annotations

import pytest

from bench.faults import x20_frames
from bench.faults.apart import run_apart
from bench.faults.seeds import seeds
from tests.crash.verdicts import expect_caught, expect_held


@pytest.mark.parametrize("seed", seeds(4))
def test_malformed_frames_are_answered_or_closed_and_harm_nobody(seed: int) -> None:
    expect_held(run_apart(x20_frames, seed))


def test_a_broker_that_does_not_foresee_malformed_frames_is_caught() -> None:
    expect_caught(x20_frames, "malformed-check", cases=40)
