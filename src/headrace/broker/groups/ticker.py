"""Runs time-outs as they become due, and puts them all off when the process itself was away.

While any time-out is running the ticker looks at least once in an interval, and so it notices when it could not
look (the process was stopped or swapped out, the loop blocked, the machine asleep): whoever was waited for could
not be heard in that time, so every time-out is put off by as much.
"""

from __future__ import annotations

import asyncio

from headrace.broker.groups.timers import Timers
from headrace.clock import Clock

__all__ = ["Ticker"]


class Ticker:
    def __init__(self, clock: Clock, *, interval_ms: int, stall_ms_min: int) -> None:
        self.timers = Timers(clock, self._arm)
        self._clock = clock
        self._interval_s = interval_ms / 1000
        self._stall_ms_min = stall_ms_min
        self._runs = False
        self._next: asyncio.TimerHandle | None = None
        self._next_at = 0.0

    def start(self) -> None:
        self._runs = True
        self._arm()

    def stop(self) -> None:
        self._runs = False
        if self._next is not None:
            self._next.cancel()
            self._next = None

    def tick(self) -> None:
        """Act on every time-out that has passed, unless it passed while nobody was looking."""
        late_s = self._clock.steady() - self._next_at
        if self._next is not None:
            self._next.cancel()
            self._next = None
            if late_s * 1000 > self._stall_ms_min:
                self.timers.put_off(late_s)
        self.timers.run_due()
        self._arm()

    def _arm(self) -> None:
        """Plan the next tick: at the first deadline, and soon enough to notice a stall."""
        deadline = self.timers.next_deadline()
        if deadline is None or not self._runs:
            return
        now = self._clock.steady()
        wait_s = min(max(deadline - now, 0.0), self._interval_s)
        if self._next is not None:
            if self._next_at <= now + wait_s:
                return
            self._next.cancel()
        self._next_at = now + wait_s
        self._next = asyncio.get_running_loop().call_later(wait_s, self.tick)
