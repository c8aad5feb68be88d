"""A wait ends when its condition can no longer become true."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from faults.wait import until, unwatch, watch, watched, watched_process


def start(code: str, log: Path | None = None) -> subprocess.Popen[bytes]:
    with (log or Path("/dev/null")).open("wb") as output:
        return subprocess.Popen([sys.executable, "-c", code], stdout=output, stderr=output)


def test_a_wait_fails_with_the_output_of_a_watched_process_that_exited(tmp_path: Path) -> None:
    log = tmp_path / "log"
    process = start("import sys; sys.exit('there is no module')", log)
    with (
        watched_process(process, "the flow", log),
        pytest.raises(AssertionError, match=r"topics: the flow exited with code 1; it printed:\nthere is no"),
    ):
        until(lambda: False, "the topics")
    process.wait()


def test_a_condition_that_is_true_counts_although_the_process_has_ended(tmp_path: Path) -> None:
    process = start("")
    process.wait()
    results = iter(["", "done"])
    with watched_process(process, "the flow"):
        assert until(lambda: next(results), "the rows") == "done"


def test_only_a_watched_process_ends_a_wait() -> None:
    thread = object()
    watch(thread, lambda: "the follower ended")
    unwatch(thread)
    results = iter([False, False, True])
    assert until(lambda: next(results), "the rows", pause_s=0)
    with watched(thread, lambda: None):
        results = iter([False, True])
        assert until(lambda: next(results), "the rows", pause_s=0)


def test_a_wait_has_a_deadline() -> None:
    with pytest.raises(AssertionError, match="the rows: not as expected within 0 s") as failed:
        until(lambda: FalseResult("7 of 9"), "the rows", timeout_s=0)
    assert "last value: 7 of 9" in str(failed.value)


class FalseResult:
    def __init__(self, text: str) -> None:
        self.text = text

    def __bool__(self) -> bool:
        return False

    def __repr__(self) -> str:
        return self.text
