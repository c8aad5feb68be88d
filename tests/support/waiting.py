"""Waiting for something to become true, with a deadline; never for time to pass."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

__all__ = ["until"]

T = TypeVar("T")


def until(condition: Callable[[], T], what: str, timeout_s: float = 240.0, pause_s: float = 0.02) -> T:
    """Ask until the answer is true and return it; past the deadline, fail with the last answer."""
    deadline = time.monotonic() + timeout_s
    while True:
        answer = condition()
        if answer:
            return answer
        if time.monotonic() > deadline:
            raise AssertionError(f"{what}: not within {timeout_s} s, last answer {answer!r}")
        time.sleep(pause_s)
