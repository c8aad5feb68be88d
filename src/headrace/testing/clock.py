"""A clock that a test controls. The test can stop the clock, advance it and set it forward or back."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

__all__ = ["DrivenClock"]


class DrivenClock:
    """Implements ``headrace.clock.Clock``. The clock does not move, or follows ``ticking`` (e.g. ``time.monotonic``).

    As on a real machine, ``steady`` never decreases, even if the wall clock is set back.
    """

    def __init__(
        self, now_ms: int = 1_700_000_000_000, *, ticking: Callable[[], float] | None = None
    ) -> None:
        self._ticking = ticking
        self._started = 0.0 if ticking is None else ticking()
        self._advanced = 0.0
        self._wall_ms = now_ms
        self._frozen_at: float | None = None
        self._mutex = threading.Lock()

    def now_ms(self) -> int:
        with self._mutex:
            return self._wall_ms + int(
                (self._elapsed() if self._frozen_at is None else self._frozen_at) * 1000
            )

    def now(self) -> datetime:
        """The wall clock as a time in UTC."""
        return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=self.now_ms())

    def steady(self) -> float:
        with self._mutex:
            return self._elapsed()

    def advance(self, seconds: float) -> None:
        """Advance both clocks."""
        if seconds < 0:
            raise ValueError(f"cannot advance by {seconds} s: use jump_wall to set the wall clock back")
        with self._mutex:
            self._advanced += seconds

    def jump_wall(self, ms: int) -> None:
        """Set the wall clock forward or back. The steady clock does not change."""
        with self._mutex:
            self._wall_ms += ms

    def freeze(self) -> None:
        """Stop the wall clock; the steady clock continues."""
        with self._mutex:
            if self._frozen_at is None:
                self._frozen_at = self._elapsed()

    def thaw(self) -> None:
        """Continue the wall clock from where it stopped."""
        with self._mutex:
            if self._frozen_at is not None:
                self._wall_ms -= int((self._elapsed() - self._frozen_at) * 1000)
                self._frozen_at = None

    def _elapsed(self) -> float:
        ticked = 0.0 if self._ticking is None else self._ticking() - self._started
        return ticked + self._advanced
