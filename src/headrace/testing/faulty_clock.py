"""A clock in the hands of a test: it stands, moves and jumps as told."""

from __future__ import annotations

import threading
from collections.abc import Callable

__all__ = ["DrivenClock"]


class DrivenClock:
    """The port ``headrace.clock.Clock``. Stands still by itself, or follows ``ticking`` (say, ``time.monotonic``).

    ``steady`` never goes back, whatever is done to the wall clock, as on a real machine.
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
            return self._wall_ms + int((self._moved() if self._frozen_at is None else self._frozen_at) * 1000)

    def steady(self) -> float:
        with self._mutex:
            return self._moved()

    def advance(self, seconds: float) -> None:
        """Let time pass, on both clocks."""
        if seconds < 0:
            raise ValueError(f"time does not go back by {seconds} s: use jump_wall for the wall clock")
        with self._mutex:
            self._advanced += seconds

    def jump_wall(self, ms: int) -> None:
        """Set the wall clock forward, or back; no time passes."""
        with self._mutex:
            self._wall_ms += ms

    def freeze(self) -> None:
        """Stop the wall clock; the steady one goes on."""
        with self._mutex:
            if self._frozen_at is None:
                self._frozen_at = self._moved()

    def thaw(self) -> None:
        """Let the wall clock go on from where it stopped."""
        with self._mutex:
            if self._frozen_at is not None:
                self._wall_ms -= int((self._moved() - self._frozen_at) * 1000)
                self._frozen_at = None

    def _moved(self) -> float:
        ticked = 0.0 if self._ticking is None else self._ticking() - self._started
        return ticked + self._advanced
