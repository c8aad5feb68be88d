"""Threads for blocking work on stores and the log. Threads and queue are bounded, and each call has a timeout."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from headrace.serve.errors import TooBusy
from headrace.stores.errors import QueryTimedOut

__all__ = ["LOG", "BoundedExecutor"]

LOG = "the log"
"""The resource name for work that queries the log."""

T = TypeVar("T")
_INLINE_S = 0.005
_STALL_S = 0.1
"""One inline call that takes longer than this disables inline calls for a while. Shorter calls disable them if their
average exceeds ``_INLINE_S``.
"""
_AVERAGED = 16
_AVOID_INLINE_S = 10.0
_GRACE_S = 2.0
"""Time to wait beyond the timeout. The work has the same timeout, and its own error has more detail."""


class BoundedExecutor:
    """Use it in one event loop. One resource may use at most three quarters of the threads, so that a resource that
    does not respond leaves threads for the others.
    """

    def __init__(self, threads: int, queue_max: int) -> None:
        self._pool = ThreadPoolExecutor(threads, "serve")
        self._concurrent_max = threads + queue_max
        self._per_resource_max = max(1, threads * 3 // 4)
        self._slots: dict[Hashable, asyncio.Semaphore] = {}
        self._futures: set[asyncio.Future[Any]] = set()
        self._slow_until: dict[Hashable, float] = {}
        self._average_s: dict[Hashable, float] = {}
        self.under_way = 0

    async def run(self, work: Callable[[], T], timeout_s: float, resource: Hashable = None) -> T:
        """Run ``work`` in a thread. ``resource`` is the store or the log that it queries."""
        if self.under_way >= self._concurrent_max:
            raise TooBusy(
                f"too many concurrent queries (limit {self._concurrent_max})",
                hint="try again in a moment",
            )
        self.under_way += 1
        started_s = asyncio.get_running_loop().time()
        try:
            slots = await self._acquire(resource, timeout_s)
        except BaseException:
            self.under_way -= 1
            raise
        future = asyncio.wrap_future(self._pool.submit(work))
        # Cancelling the waiter does not cancel the work, so the work keeps its slot until it ends.
        self._futures.add(future)
        future.add_done_callback(lambda done: self._finish(done, slots))
        left_s = timeout_s + _GRACE_S - (asyncio.get_running_loop().time() - started_s)
        try:
            done, _ = await asyncio.wait((future,), timeout=left_s)
            if done:
                return future.result()
        except TimeoutError:
            # The work itself raised this error, because it has the same timeout.
            raise QueryTimedOut(timeout_s) from None
        raise QueryTimedOut(timeout_s)

    def may_run_inline(self, resource: Hashable) -> bool:
        """True if short work may run in the event loop.

        Work of a few microseconds costs less than handing it to a thread. After slow inline calls, for example on a
        slow disk, this returns False for a while.
        """
        return asyncio.get_running_loop().time() >= self._slow_until.get(resource, 0.0)

    def run_inline(self, work: Callable[[], T], resource: Hashable) -> T:
        """Run ``work`` in the event loop."""
        loop = asyncio.get_running_loop()
        started_s = loop.time()
        try:
            return work()
        finally:
            took_s = loop.time() - started_s
            average_s = self._average_s.get(resource, 0.0)
            self._average_s[resource] = average_s = average_s + (took_s - average_s) / _AVERAGED
            if took_s > _STALL_S or average_s > _INLINE_S:
                self._slow_until[resource] = loop.time() + _AVOID_INLINE_S
                self._average_s[resource] = 0.0

    async def _acquire(self, resource: Hashable, timeout_s: float) -> asyncio.Semaphore | None:
        if resource is None:
            return None
        slots = self._slots.setdefault(resource, asyncio.Semaphore(self._per_resource_max))
        if not slots.locked():
            await slots.acquire()  # Does not wait.
            return slots
        try:
            async with asyncio.timeout(timeout_s):
                await slots.acquire()
        except TimeoutError:
            raise TooBusy(
                f"too many concurrent queries of one store or the log (limit {self._per_resource_max})",
                hint="try again in a moment",
            ) from None
        return slots

    def _finish(self, done: asyncio.Future[T], slots: asyncio.Semaphore | None) -> None:
        self.under_way -= 1
        self._futures.discard(done)
        if slots is not None:
            slots.release()
        if not done.cancelled():
            # Retrieve the exception here. If the waiter was cancelled, asyncio would otherwise log a warning.
            done.exception()

    def close(self) -> None:
        for future in self._futures:
            # Cancel the future, because the event loop may close before the thread finishes.
            future.cancel()
        self._pool.shutdown(wait=False, cancel_futures=True)
