"""Clocks behind an interface, so that tests can freeze time or make it jump.

``now_ms`` is the wall clock, for timestamps. ``steady`` is for timeouts: it only moves forward, at the rate of real
time, including the time that the machine sleeps. No other code reads a clock.

Code that deletes by age (retention, offset expiry, idle producers) uses ``TrustedTime``, which does not jump. A person,
a flat battery or a time server can set the wall clock an hour or ten years off at any moment. Trusted time advances at
the rate of the steady clock and follows small corrections of the wall clock at once. It follows a jump only after the
new time has lasted for ``GRACE_S``. A jump that is reverted within that time deletes nothing. The broker stores the
last trusted time in its data directory, so that a start with a wrong clock counts as a jump too.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Protocol

__all__ = ["GRACE_S", "TOLERANCE_MS", "Clock", "SystemClock", "TrustedTime", "time_json"]

_STEADY = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class Clock(Protocol):
    def now_ms(self) -> int:
        """Milliseconds since 1970 by the wall clock, which can jump forward or back."""

    def steady(self) -> float:
        """Seconds since a fixed moment. The value never goes back and never jumps."""


class SystemClock:
    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def steady(self) -> float:
        return time.clock_gettime(_STEADY)


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_SECONDS_CACHED = 64
_LATEST = "9999-12-31T23:59:59.999999Z"


def time_json(ms: int) -> str:
    """Format as ISO 8601 with six decimals. Every response has such a time, so the text of each second is cached."""
    second, fraction = divmod(ms, 1_000)
    try:
        return f"{_second_text(second)}.{fraction:03}000Z"
    except OverflowError:
        return _LATEST


@lru_cache(_SECONDS_CACHED)
def _second_text(second: int) -> str:
    return (_EPOCH + timedelta(seconds=second)).replace(tzinfo=None).isoformat()


TOLERANCE_MS = 60_000
GRACE_S = 3600.0


class TrustedTime:
    def __init__(self, clock: Clock, last_known_ms: int | None) -> None:
        self._clock = clock
        self._anchor_ms = clock.now_ms() if last_known_ms is None else last_known_ms
        self._anchor_steady = clock.steady()
        self._jump_ms: int | None = None
        self._jump_since = 0.0
        self.jumps = 0
        self.last_jump_ms = 0
        """The size of the last jump. It remains set after the jump was reverted or accepted."""

    def now_ms(self) -> int:
        steady = self._clock.steady()
        expected = self._anchor_ms + int((steady - self._anchor_steady) * 1000)
        wall = self._clock.now_ms()
        difference_ms = wall - expected
        if abs(difference_ms) <= TOLERANCE_MS:
            self._jump_ms = None
            # Move the anchor only once an hour. Otherwise many small corrections could add up to a large
            # change that never counts as a jump.
            if steady - self._anchor_steady >= GRACE_S:
                self._anchor_ms, self._anchor_steady = wall, steady
            return wall
        if self._jump_ms is None or abs(difference_ms - self._jump_ms) > TOLERANCE_MS:
            self._jump_ms = self.last_jump_ms = difference_ms
            self._jump_since = steady
            self.jumps += 1
        elif steady - self._jump_since >= GRACE_S:
            self._jump_ms = None
            self._anchor_ms, self._anchor_steady = wall, steady
            return wall
        return expected

    def stamp_ms(self) -> int:
        """The later of trusted and wall time. Use it to record when something was last used.

        Deletion by age uses ``now_ms``, which can move forward by years when a jump is accepted. With the later time as
        its stamp, an object never appears older than it is. At worst it is retained for too long.
        """
        return max(self.now_ms(), self._clock.now_ms())

    @property
    def pending_jump_ms(self) -> int:
        """Wall time minus trusted time, while a jump is neither accepted nor reverted; 0 otherwise."""
        return self._jump_ms or 0
