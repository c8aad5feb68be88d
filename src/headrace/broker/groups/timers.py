"""Time-outs that are decided by the steady clock and can all be put off at once.

A heap of (deadline, timer). Pushing a deadline back, which every heartbeat does, only notes the new one on
the timer; the heap entry is corrected when it comes up. So a heartbeat costs no heap operation, and a stopped
timer leaves an entry behind, which is dropped when it comes up or when such entries are the larger part of
the heap.

Nothing here waits: the owner asks ``run_due`` from time to time and is told through ``earlier`` when it
should ask sooner than it had planned. The wall clock plays no part, so that setting it expires nobody.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable

from headrace.clock import Clock

__all__ = ["Timer", "Timers"]

_STOPPED_KEPT_MAX = 256


class Timer:
    """One time-out: runs ``act`` once after its deadline, unless it was started again or stopped."""

    __slots__ = ("act", "deadline", "queued", "ticket", "timeout_s")

    def __init__(self, act: Callable[[], None]) -> None:
        self.act = act
        self.deadline: float | None = None
        self.timeout_s = 0.0
        #: The heap entry that counts: when it comes up and its number. Other entries of this timer are left-
        #: overs.
        self.queued: float | None = None
        self.ticket = 0


class Timers:
    def __init__(self, clock: Clock, earlier: Callable[[], None]) -> None:
        self._clock = clock
        self._earlier = earlier
        self._heap: list[tuple[float, int, Timer]] = []
        self._tickets = 0
        self._running = 0

    def __len__(self) -> int:
        return self._running

    def start(self, timer: Timer, timeout_ms: int) -> None:
        """Run it ``timeout_ms`` from now; a timer that is already running is moved."""
        timeout_s = max(timeout_ms, 0) / 1000
        # While none runs the owner does not ask, whatever left-overs are in the heap: the first one must wake it.
        is_first = self._running == 0
        if timer.deadline is None:
            self._running += 1
        timer.timeout_s = timeout_s
        timer.deadline = self._clock.steady() + timeout_s
        if timer.queued is None or timer.deadline < timer.queued:
            self._push(timer, timer.deadline)
            is_first = is_first or self._heap[0][2] is timer
        if is_first:
            self._earlier()

    def stop(self, timer: Timer) -> None:
        if timer.deadline is None:
            return
        timer.deadline = None
        self._running -= 1
        if len(self._heap) > _STOPPED_KEPT_MAX and len(self._heap) > 2 * self._running:
            self._rebuild()

    def next_deadline(self) -> float | None:
        """When to ask again at the latest; may be too early, never too late."""
        return self._heap[0][0] if self._running else None

    def run_due(self) -> None:
        """Run all that have passed. What they start themselves runs at the next call at the earliest."""
        now = self._clock.steady()
        due: list[Timer] = []
        while self._heap and self._heap[0][0] <= now:
            _, ticket, timer = heapq.heappop(self._heap)
            if ticket != timer.ticket:
                continue
            timer.queued = None
            if timer.deadline is None:
                continue
            if timer.deadline > now:
                self._push(timer, timer.deadline)
            else:
                due.append(timer)
        for timer in due:
            # One that ran before may have stopped this one or started it again.
            if timer.deadline is not None and timer.deadline <= now and timer.queued is None:
                timer.deadline = None
                self._running -= 1
                timer.act()

    def put_off(self, by_s: float) -> None:
        """Give every running timer ``by_s`` more, but never more than a fresh start would give it."""
        now = self._clock.steady()
        for _, ticket, timer in self._heap:
            if ticket == timer.ticket and timer.deadline is not None:
                timer.deadline = max(timer.deadline, min(timer.deadline + by_s, now + timer.timeout_s))
        self._rebuild()

    def _push(self, timer: Timer, deadline: float) -> None:
        self._tickets += 1
        timer.queued = deadline
        timer.ticket = self._tickets
        heapq.heappush(self._heap, (deadline, self._tickets, timer))

    def _rebuild(self) -> None:
        fresh: list[tuple[float, int, Timer]] = []
        for _, ticket, timer in self._heap:
            if ticket == timer.ticket:
                timer.queued = timer.deadline
                if timer.deadline is not None:
                    fresh.append((timer.deadline, ticket, timer))
        heapq.heapify(fresh)
        self._heap = fresh
