"""Waiting for something to become true, with a deadline; never for time to pass.

What a test needs (a server, a command, a follower in a thread) is watched while it must run. A wait fails as soon as
any of it has ended, and says how, instead of waiting for what can no longer come.
"""

from __future__ import annotations

import contextlib
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

__all__ = ["fail_if_ended", "until", "unwatch", "watch", "watch_process", "watched", "watched_process"]

T = TypeVar("T")
_TAIL_CHARS = 4_000
_watched: dict[int, tuple[object, Callable[[], str | None]]] = {}


def watch(key: object, ended: Callable[[], str | None]) -> None:
    """``ended`` says how it ended, or nothing while it runs. Until ``unwatch``, every wait asks it."""
    _watched[id(key)] = (key, ended)


def watch_process(process: subprocess.Popen[bytes], name: str, log: Path | None = None) -> None:
    """``log`` is where its output goes; a wait that fails shows the end of it."""
    watch(process, lambda: _how_it_ended(process, name, log))


def unwatch(key: object) -> None:
    """It may end from now on."""
    _watched.pop(id(key), None)


@contextlib.contextmanager
def watched(key: object, ended: Callable[[], str | None]) -> Iterator[None]:
    watch(key, ended)
    try:
        yield
    finally:
        unwatch(key)


@contextlib.contextmanager
def watched_process(process: subprocess.Popen[bytes], name: str, log: Path | None = None) -> Iterator[None]:
    with watched(process, lambda: _how_it_ended(process, name, log)):
        yield


def _how_it_ended(process: subprocess.Popen[bytes], name: str, log: Path | None = None) -> str | None:
    code = process.poll()
    if code is None:
        return None
    said = f"; it printed:\n{log.read_text(errors='replace')[-_TAIL_CHARS:]}" if log is not None else ""
    return f"{name} ended with exit code {code}{said}"


def fail_if_ended(what: str) -> None:
    for _, ended in [*_watched.values()]:
        how = ended()
        if how is not None:
            raise AssertionError(f"{what}: {how}")


def until(condition: Callable[[], T], what: str, timeout_s: float = 240.0, pause_s: float = 0.02) -> T:
    """Ask until the answer is true and return it. Past the deadline, or once something that is watched has ended, fail
    with the last answer.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        answer = condition()
        if answer:
            return answer
        try:
            fail_if_ended(what)
        except AssertionError:
            # It may have come true as the last thing before the end.
            answer = condition()
            if answer:
                return answer
            raise
        if time.monotonic() > deadline:
            raise AssertionError(f"{what}: not within {timeout_s} s, last answer {answer!r}")
        time.sleep(pause_s)
