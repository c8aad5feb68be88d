"""X8, clock jumps, on a simulated clock; ``bench/faults/x8_clock.py`` says what must hold."""

from __future__ import annotations

import pytest

from bench.faults import x8_clock
from bench.faults.seeds import seeds
from bench.faults.x8_clock import CASES, UNPROTECTED, run
from tests.crash.verdicts import expect_caught

QUICK = [
    ("+1 h", "running", False),
    ("+10 y", "running", False),
    ("+10 y", "down", True),
    ("-10 y", "running", True),
    ("frozen", "running", True),
    ("off for 9 days", "down", True),
]


@pytest.mark.parametrize(("jump", "when", "stands"), QUICK)
def test_a_clock_jump_deletes_nothing_early_and_expires_nobody(jump: str, when: str, stands: bool) -> None:
    assert (jump, when, stands) in CASES
    for seed in seeds(1):
        outcome = run(seed, case=(jump, when, stands))
        assert outcome.held, outcome.says()


@pytest.mark.parametrize("protection", UNPROTECTED)
def test_without_trusted_time_the_oracle_objects(protection: str) -> None:
    expect_caught(x8_clock, protection, tries=1, apart=False)
