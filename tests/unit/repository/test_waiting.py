"""A wait ends when what it waits for can no longer come."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.waiting import until, unwatch, watch, watched, watched_process


def started(code: str, log: Path | None = None) -> subprocess.Popen[bytes]:
    with (log or Path("/dev/null")).open("wb") as output:
        return subprocess.Popen([sys.executable, "-c", code], stdout=output, stderr=output)


def test_a_wait_fails_when_the_process_it_needs_has_ended_and_says_what_it_printed(tmp_path: Path) -> None:
    log = tmp_path / "log"
    process = started("import sys; sys.exit('there is no module')", log)
    with (
        watched_process(process, "the flow", log),
        pytest.raises(
            AssertionError, match=r"topics: the flow ended with exit code 1; it printed:\nthere is no"
        ),
    ):
        until(lambda: False, "the topics")
    process.wait()


def test_what_came_true_before_the_end_counts(tmp_path: Path) -> None:
    process = started("")
    process.wait()
    answers = iter(["", "done"])
    with watched_process(process, "the flow"):
        assert until(lambda: next(answers), "the rows") == "done"


def test_only_what_is_watched_ends_a_wait() -> None:
    thread = object()
    watch(thread, lambda: "the follower ended")
    unwatch(thread)
    answers = iter([False, False, True])
    assert until(lambda: next(answers), "the rows", pause_s=0)
    with watched(thread, lambda: None):
        answers = iter([False, True])
        assert until(lambda: next(answers), "the rows", pause_s=0)


def test_a_wait_has_a_deadline() -> None:
    with pytest.raises(AssertionError, match="the rows: not within 0 s, last answer 7 of 9"):
        until(lambda: Nearly("7 of 9"), "the rows", timeout_s=0)


class Nearly:
    def __init__(self, text: str) -> None:
        self.text = text

    def __bool__(self) -> bool:
        return False

    def __repr__(self) -> str:
        return self.text
