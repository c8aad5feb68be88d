"""Fault X8, clock jumps, on a simulated clock: a small subset of the cases of ``faults.simulation.clock_jumps``."""

from __future__ import annotations

import pytest

from faults.seeds import drawn_seeds
from faults.simulation import clock_jumps
from faults.simulation.clock_jumps import CASES, UNPROTECTED, run
from tests.crash.verdicts import expect_caught

QUICK_CASES = [
    ("+1 h", "running", False),
    ("+10 y", "running", False),
    ("+10 y", "down", True),
    ("-10 y", "running", True),
    ("frozen", "running", True),
    ("off for 9 days", "down", True),
]


@pytest.mark.parametrize(("jump", "when", "stays"), QUICK_CASES)
def test_a_clock_jump_deletes_no_record_early_and_expires_no_member(
    jump: str, when: str, stays: bool
) -> None:
    assert (jump, when, stays) in CASES
    for seed in drawn_seeds(1):
        outcome = run(seed, case=(jump, when, stays))
        assert outcome.held, outcome.report()


def test_records_of_the_future_keep_all_records_behind_them_after_a_jump_back() -> None:
    # With this seed, more overdue records are behind records with future timestamps than were deleted before
    # the jump.
    outcome = run(1982387554, case=("-10 y", "running", True))
    assert outcome.held, outcome.report()


@pytest.mark.soak
@pytest.mark.parametrize("protection", UNPROTECTED)
def test_the_oracle_detects_a_broker_without_trusted_time(protection: str) -> None:
    expect_caught(clock_jumps, protection, tries=1, isolated=False)
