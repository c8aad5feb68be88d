"""Waits until a condition is true, with a deadline, instead of sleeping for a fixed time.

A wait also watches the processes and threads that the test needs: a server, a command, a follower. The wait fails as
soon as one of them ends, and reports how it ended.
"""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

from headrace.testing.wait import eventually

__all__ = ["fail_if_ended", "until", "unwatch", "watch", "watch_process", "watched", "watched_process"]

T = TypeVar("T")
_TAIL_CHARS = 4_000
_WATCHED: dict[int, tuple[object, Callable[[], str | None]]] = {}


def watch(key: object, ended: Callable[[], str | None]) -> None:
    """``ended`` returns how ``key`` ended, or None while it runs. Every wait calls it until ``unwatch``."""
    _WATCHED[id(key)] = (key, ended)


def watch_process(process: subprocess.Popen[bytes], name: str, log: Path | None = None) -> None:
    """Watch a process. ``log`` has its output; a failed wait shows the end of the log."""
    watch(process, lambda: _exit_report(process, name, log))


def unwatch(key: object) -> None:
    """Stop watching ``key``, so that it may end."""
    _WATCHED.pop(id(key), None)


@contextlib.contextmanager
def watched(key: object, ended: Callable[[], str | None]) -> Iterator[None]:
    watch(key, ended)
    try:
        yield
    finally:
        unwatch(key)


@contextlib.contextmanager
def watched_process(process: subprocess.Popen[bytes], name: str, log: Path | None = None) -> Iterator[None]:
    with watched(process, lambda: _exit_report(process, name, log)):
        yield


def _exit_report(process: subprocess.Popen[bytes], name: str, log: Path | None = None) -> str | None:
    code = process.poll()
    if code is None:
        return None
    output = f"; it printed:\n{log.read_text(errors='replace')[-_TAIL_CHARS:]}" if log is not None else ""
    return f"{name} exited with code {code}{output}"


def fail_if_ended(what: str) -> None:
    for _, ended in [*_WATCHED.values()]:
        report = ended()
        if report is not None:
            raise AssertionError(f"{what}: {report}")


def until(condition: Callable[[], T], what: str, timeout_s: float = 240.0, pause_s: float = 0.02) -> T:
    """Call ``condition`` until its result is true, and return the result. Fail with the last result after the deadline,
    or when a watched process or thread has ended.
    """
    return eventually(
        condition,
        what=what,
        timeout_s=timeout_s,
        pause_s=pause_s,
        retry=(),
        check=lambda: fail_if_ended(what),
    )
