"""Runs in a process of their own: one death of it is borne, a second is told, and the next run is not disturbed."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.faults.apart import RunDied, run_apart
from tests.crash import dying


def test_a_run_whose_process_died_is_made_once_more(tmp_path: Path) -> None:
    assert run_apart(dying, 7, marks=str(tmp_path), deaths=1).held
    assert len(list(tmp_path.iterdir())) == 1


def test_a_second_death_is_a_failure_and_the_next_run_gets_a_new_process(tmp_path: Path) -> None:
    with pytest.raises(RunDied, match=r"seed 7: its process ended with -6"):
        run_apart(dying, 7, marks=str(tmp_path), deaths=5)
    assert run_apart(dying, 8, marks=str(tmp_path), deaths=0).seed == 8


def test_what_a_run_did_not_foresee_comes_with_its_trace(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match=r"(?s)seed 7 did not come to its end.*RuntimeError: unforeseen"):
        run_apart(dying, 7, marks=str(tmp_path), deaths=0, raises=True)
