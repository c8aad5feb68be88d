"""Timeouts by the steady clock, so that a change of the wall clock does not expire members.

``Timers`` is a heap of timers, sorted by deadline. Every heartbeat extends a deadline. A heartbeat changes
only the timer, not the heap: the heap entry is corrected when it is due. The entry of a stopped timer
remains in the heap until it is due, or until most entries are stale and the heap is rebuilt.

``Ticker`` runs the timers on the event loop. While any timer is running, it ticks at least once per interval. A late
tick reveals a stall: the process was suspended, the event loop was blocked, or the machine was asleep. The broker could
not receive heartbeats during the stall, so the ticker extends every timer by the time since the tick was scheduled.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable

from headrace.clock import Clock

__all__ = ["Ticker", "Timer", "Timers"]

_STALE_ENTRIES_MAX = 256


class Timer:
    """A timeout. It runs ``act`` once after its deadline, unless it is restarted or stopped earlier."""

    __slots__ = ("act", "deadline", "queued_deadline", "ticket", "timeout_s")

    def __init__(self, act: Callable[[], None]) -> None:
        self.act = act
        self.deadline: float | None = None
        self.timeout_s = 0.0
        #: Deadline and number (``ticket``) of the timer's valid heap entry. All its other entries are stale.
        self.queued_deadline: float | None = None
        self.ticket = 0


class Timers:
    def __init__(self, clock: Clock, on_earlier: Callable[[], None]) -> None:
        """``on_earlier`` is called when ``run_due`` must run earlier than scheduled."""
        self._clock = clock
        self._on_earlier = on_earlier
        self._heap: list[tuple[float, int, Timer]] = []
        self._tickets = 0
        self._running = 0

    def __len__(self) -> int:
        return self._running

    def start(self, timer: Timer, timeout_ms: int) -> None:
        """Start or restart the timer. It is due ``timeout_ms`` from now."""
        timeout_s = max(timeout_ms, 0) / 1000
        # While no timer is running, the ticker does not tick, even if the heap has stale entries. So the first timer
        # must wake it.
        is_first = self._running == 0
        if timer.deadline is None:
            self._running += 1
        timer.timeout_s = timeout_s
        timer.deadline = self._clock.steady() + timeout_s
        if timer.queued_deadline is None or timer.deadline < timer.queued_deadline:
            self._push(timer, timer.deadline)
            is_first = is_first or self._heap[0][2] is timer
        if is_first:
            self._on_earlier()

    def stop(self, timer: Timer) -> None:
        if timer.deadline is None:
            return
        timer.deadline = None
        self._running -= 1
        if len(self._heap) > _STALE_ENTRIES_MAX and len(self._heap) > 2 * self._running:
            self._rebuild()

    def next_deadline(self) -> float | None:
        """Return when to call ``run_due`` next. The time can be too early, but is never too late."""
        return self._heap[0][0] if self._running else None

    def run_due(self) -> None:
        """Run all timers that are due. Timers that are started meanwhile run in a later call at the earliest."""
        now = self._clock.steady()
        due: list[Timer] = []
        while self._heap and self._heap[0][0] <= now:
            _, ticket, timer = heapq.heappop(self._heap)
            if ticket != timer.ticket:
                continue
            timer.queued_deadline = None
            if timer.deadline is None:
                continue
            if timer.deadline > now:
                self._push(timer, timer.deadline)
            else:
                due.append(timer)
        for timer in due:
            # The action of a previous timer may have stopped or restarted this timer.
            if timer.deadline is not None and timer.deadline <= now and timer.queued_deadline is None:
                timer.deadline = None
                self._running -= 1
                timer.act()

    def postpone(self, by_s: float) -> None:
        """Extend every running timer by ``by_s``, but never beyond its full timeout from now."""
        now = self._clock.steady()
        for _, ticket, timer in self._heap:
            if ticket == timer.ticket and timer.deadline is not None:
                timer.deadline = max(timer.deadline, min(timer.deadline + by_s, now + timer.timeout_s))
        self._rebuild()

    def _push(self, timer: Timer, deadline: float) -> None:
        self._tickets += 1
        timer.queued_deadline = deadline
        timer.ticket = self._tickets
        heapq.heappush(self._heap, (deadline, self._tickets, timer))

    def _rebuild(self) -> None:
        valid: list[tuple[float, int, Timer]] = []
        for _, ticket, timer in self._heap:
            if ticket == timer.ticket:
                timer.queued_deadline = timer.deadline
                if timer.deadline is not None:
                    valid.append((timer.deadline, ticket, timer))
        heapq.heapify(valid)
        self._heap = valid


class Ticker:
    def __init__(self, clock: Clock, *, interval_ms: int, stall_ms_min: int) -> None:
        self.timers = Timers(clock, self._schedule_tick)
        self._clock = clock
        self._interval_s = interval_ms / 1000
        self._stall_ms_min = stall_ms_min
        self._is_running = False
        self._next_tick: asyncio.TimerHandle | None = None
        self._next_tick_at = 0.0
        self._scheduled_at = 0.0

    def start(self) -> None:
        self._is_running = True
        self._schedule_tick()

    def stop(self) -> None:
        self._is_running = False
        if self._next_tick is not None:
            self._next_tick.cancel()
            self._next_tick = None

    def tick(self) -> None:
        """Run the timers that are due. After a stall, first extend every timer, so that no timer expires early."""
        now = self._clock.steady()
        if self._next_tick is not None:
            self._next_tick.cancel()
            self._next_tick = None
            if (now - self._next_tick_at) * 1000 > self._stall_ms_min:
                # The stall may have begun right after this tick was scheduled.
                self.timers.postpone(now - self._scheduled_at)
        self.timers.run_due()
        self._schedule_tick()

    def _schedule_tick(self) -> None:
        """Schedule the next tick at the first deadline, but at most one interval from now."""
        deadline = self.timers.next_deadline()
        if deadline is None or not self._is_running:
            return
        now = self._clock.steady()
        wait_s = min(max(deadline - now, 0.0), self._interval_s)
        if self._next_tick is not None:
            if self._next_tick_at <= now + wait_s:
                return
            self._next_tick.cancel()
        self._scheduled_at = now
        self._next_tick_at = now + wait_s
        self._next_tick = asyncio.get_running_loop().call_later(wait_s, self.tick)
