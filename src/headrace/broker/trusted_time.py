"""A time that does not jump, for everything that deletes: retention, offset expiry, forgotten producers.

The wall clock may be set an hour or ten years away at any moment, by a person, a flat battery or a time
server. Trusted time goes on at the rate of the steady clock, follows the wall clock's small corrections at
once, and a jump only after the new time has stood for ``GRACE_S``. A jump that is taken back within that time
has deleted nothing. The last trusted time is kept in the data directory, so that a start with a wrong clock
is a jump like any other.
"""

from __future__ import annotations

from headrace.clock import Clock

__all__ = ["GRACE_S", "TOLERANCE_MS", "TrustedTime"]

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
        self.jumped_ms = 0
        """How far the last jump went, also once it was taken back or believed."""

    def now_ms(self) -> int:
        steady = self._clock.steady()
        expected = self._anchor_ms + int((steady - self._anchor_steady) * 1000)
        wall = self._clock.now_ms()
        apart = wall - expected
        if abs(apart) <= TOLERANCE_MS:
            self._jump_ms = None
            # Moved only once an hour, so that many small corrections cannot add up to a jump.
            if steady - self._anchor_steady >= GRACE_S:
                self._anchor_ms, self._anchor_steady = wall, steady
            return wall
        if self._jump_ms is None or abs(apart - self._jump_ms) > TOLERANCE_MS:
            self._jump_ms = self.jumped_ms = apart
            self._jump_since = steady
            self.jumps += 1
        elif steady - self._jump_since >= GRACE_S:
            self._jump_ms = None
            self._anchor_ms, self._anchor_steady = wall, steady
            return wall
        return expected

    def stamp_ms(self) -> int:
        """The later of trusted and wall time, for noting when something was last used.

        What is deleted by its age goes by ``now_ms``, and that may move by years when a jump is believed, also
        after a long time off. With a stamp that is never early, nothing that was in use during the time of
        doubt looks old then; at worst it is kept for too long.
        """
        return max(self.now_ms(), self._clock.now_ms())

    @property
    def doubted_ms(self) -> int:
        """How far the wall clock stands from trusted time while a jump is being watched; 0 otherwise."""
        return self._jump_ms or 0
