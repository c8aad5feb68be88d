"""Time as a port, so that tests can freeze it or make it jump.

Two readings with two jobs: ``now_ms`` is the wall clock, for timestamps that people and retention read;
``steady`` only ever moves forward at the rate of real time (sleep of the machine included), for time-outs.
Nothing else reads a clock.
"""

from __future__ import annotations

import time
from typing import Protocol

__all__ = ["Clock", "SystemClock"]

_STEADY = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class Clock(Protocol):
    def now_ms(self) -> int:
        """Milliseconds since 1970 by the wall clock: may jump either way."""

    def steady(self) -> float:
        """Seconds since some fixed moment: never goes back, never jumps."""


class SystemClock:
    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def steady(self) -> float:
        return time.clock_gettime(_STEADY)
