"""A fault run executes in a separate process. If the process dies, the run fails, and the next run is not affected."""

from __future__ import annotations

import pytest

from faults.run_process import RunDied, run_in_process
from tests.crash import dying


def test_a_run_fails_if_its_process_dies_and_the_next_run_gets_a_new_process() -> None:
    with pytest.raises(RunDied, match=r"seed 7: its process exited with -6"):
        run_in_process(dying, 7, ending="abort")
    assert run_in_process(dying, 8).seed == 8


def test_an_unexpected_exception_in_a_run_is_reported_with_its_traceback() -> None:
    with pytest.raises(AssertionError, match=r"(?s)seed 7 raised an exception.*RuntimeError: unforeseen"):
        run_in_process(dying, 7, ending="raise")
