"""How fast background work may go: so many bytes a second, with a pause for others in between.

Python runs one thread at a time, and one that computes lets go only every few milliseconds. So work that nobody waits
for stops by itself after two of them, just long enough for the event loop to take its turn.
"""

from __future__ import annotations

import threading

from headrace.clock import Clock

__all__ = ["Interrupted", "Pace"]

_TURN_S = 0.002
_PAUSE_S = 0.0002


class Interrupted(Exception):
    """The broker stops, or the topic goes: background work ends here, and leaves everything whole."""


class Pace:
    """``bytes_per_s`` of 0 is no limit. All waiting ends when ``stop`` is set."""

    def __init__(self, clock: Clock, stop: threading.Event, bytes_per_s: int) -> None:
        self._clock = clock
        self._stop = stop
        self._bytes_per_s = bytes_per_s
        self._began = self._paused = clock.steady()
        self._bytes = 0

    def moved(self, count: int) -> None:
        """So many bytes were read or written: wait if that was too fast."""
        self._bytes += count
        if self._bytes_per_s:
            ahead_s = self._bytes / self._bytes_per_s - (self._clock.steady() - self._began)
            if ahead_s > 0:
                self._stop.wait(ahead_s)

    def breathe(self) -> None:
        """Called often: let the others have a turn, now and then."""
        if self._clock.steady() - self._paused > _TURN_S:
            self._stop.wait(_PAUSE_S)
            self._paused = self._clock.steady()
