"""Runs in a process of their own: one whose process dies has failed, and the next run is not disturbed."""

from __future__ import annotations

import pytest

from bench.faults.apart import RunDied, run_apart
from tests.crash import dying


def test_a_run_whose_process_died_has_failed_and_the_next_run_gets_a_new_process() -> None:
    with pytest.raises(RunDied, match=r"seed 7: its process ended with -6"):
        run_apart(dying, 7, how="die")
    assert run_apart(dying, 8).seed == 8


def test_what_a_run_did_not_foresee_comes_with_its_trace() -> None:
    with pytest.raises(AssertionError, match=r"(?s)seed 7 did not come to its end.*RuntimeError: unforeseen"):
        run_apart(dying, 7, how="raise")
