"""Threads for what blocks: stores and the log. Few at a time, each with a deadline, and a bounded queue before them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from headrace.serve.errors import TooBusy
from headrace.views.errors import QueryTimedOut

__all__ = ["LOG", "Work"]

LOG = "the log"
"""What is asked, where it is not a store."""

T = TypeVar("T")
_QUICK_S = 0.005
_STALL_S = 0.1
"""One that takes longer is not for the event loop again soon; shorter ones may be the machine's, and count together."""
_OF_LATE = 16
_SLOW_FOR_S = 10.0
_GRACE_S = 2.0
"""Whoever does the work keeps to the deadline too, and says more when it comes."""


class Work:
    """In one event loop. Of ``threads``, a quarter stays free of whatever does not answer, for all else."""

    def __init__(self, threads: int, queue_max: int) -> None:
        self._pool = ThreadPoolExecutor(threads, "serve")
        self._at_once_max = threads + queue_max
        self._of_one_max = max(1, threads * 3 // 4)
        self._places: dict[Hashable, asyncio.Semaphore] = {}
        self._open: set[asyncio.Future[Any]] = set()
        self._slow_until: dict[Hashable, float] = {}
        self._usual_s: dict[Hashable, float] = {}
        self.under_way = 0

    async def run(self, do: Callable[[], T], timeout_s: float, of: Hashable = None) -> T:
        """``of`` is what is asked, a store or the log: where one does not answer, others still do."""
        if self.under_way >= self._at_once_max:
            raise TooBusy(
                f"{self.under_way} questions are being answered, and that is all at a time",
                hint="ask again in a moment",
            )
        self.under_way += 1
        began = asyncio.get_running_loop().time()
        try:
            place = await self._place(of, timeout_s)
        except BaseException:
            self.under_way -= 1
            raise
        future = asyncio.wrap_future(self._pool.submit(do))
        # Who stops waiting does not end the work: its place is taken until it is done.
        self._open.add(future)
        future.add_done_callback(lambda done: self._done(done, place))
        left_s = timeout_s + _GRACE_S - (asyncio.get_running_loop().time() - began)
        try:
            done, _ = await asyncio.wait((future,), timeout=left_s)
            if done:
                return future.result()
        except TimeoutError:
            # Of the work itself, which knows the deadline too.
            raise QueryTimedOut(timeout_s) from None
        raise QueryTimedOut(timeout_s)

    def is_quick(self, of: Hashable) -> bool:
        """Whether what takes microseconds may be done in the event loop: handing it to a thread takes longer than that,
        and the two get into each other's way. Not for a while where it was slow: a disk may be.
        """
        return asyncio.get_running_loop().time() >= self._slow_until.get(of, 0.0)

    def at_once(self, do: Callable[[], T], of: Hashable) -> T:
        """In the event loop."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        try:
            return do()
        finally:
            took_s = loop.time() - began
            usual_s = self._usual_s.get(of, 0.0)
            self._usual_s[of] = usual_s = usual_s + (took_s - usual_s) / _OF_LATE
            if took_s > _STALL_S or usual_s > _QUICK_S:
                self._slow_until[of] = loop.time() + _SLOW_FOR_S
                self._usual_s[of] = 0.0

    async def _place(self, of: Hashable, timeout_s: float) -> asyncio.Semaphore | None:
        if of is None:
            return None
        place = self._places.setdefault(of, asyncio.Semaphore(self._of_one_max))
        if not place.locked():
            await place.acquire()  # At once.
            return place
        try:
            async with asyncio.timeout(timeout_s):
                await place.acquire()
        except TimeoutError:
            raise TooBusy(
                f"{self._of_one_max} questions to the same store or log are not answered yet",
                hint="ask again in a moment",
            ) from None
        return place

    def _done(self, done: asyncio.Future[T], place: asyncio.Semaphore | None) -> None:
        self.under_way -= 1
        self._open.discard(done)
        if place is not None:
            place.release()
        if not done.cancelled():
            done.exception()  # Whoever asked may be gone; then nobody else looks at it.

    def close(self) -> None:
        for one in self._open:
            # The event loop may be gone when a thread is done.
            one.cancel()
        self._pool.shutdown(wait=False, cancel_futures=True)
