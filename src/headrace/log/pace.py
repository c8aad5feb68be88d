"""The pace of background work: a limit in bytes per second, and pauses for other threads.

Python runs one thread at a time, and a computing thread releases the interpreter only every few milliseconds. So
background work pauses every two milliseconds, long enough for the event loop to run.
"""

from __future__ import annotations

import threading

from headrace.clock import Clock

__all__ = ["Interrupted", "Pace"]

_PAUSE_INTERVAL_S = 0.002
_PAUSE_S = 0.0002


class Interrupted(Exception):
    """Background work was interrupted, because the broker stops or the topic is deleted. All files remain intact."""


class Pace:
    """Limits background work to ``bytes_per_s``; 0 means no limit. Setting ``stop`` ends all waiting."""

    def __init__(self, clock: Clock, stop: threading.Event, bytes_per_s: int) -> None:
        self._clock = clock
        self._stop = stop
        self._bytes_per_s = bytes_per_s
        self._start_s = self._last_pause_s = clock.steady()
        self._bytes = 0

    def throttle(self, count: int) -> None:
        """Count bytes that were read or written, and wait if they exceed the rate."""
        self._bytes += count
        if self._bytes_per_s:
            excess_s = self._bytes / self._bytes_per_s - (self._clock.steady() - self._start_s)
            if excess_s > 0:
                self._stop.wait(excess_s)

    def pause_if_due(self) -> None:
        """Pause if the last pause was over two milliseconds ago, so that other threads can run. Call this often."""
        if self._clock.steady() - self._last_pause_s > _PAUSE_INTERVAL_S:
            self._stop.wait(_PAUSE_S)
            self._last_pause_s = self._clock.steady()
