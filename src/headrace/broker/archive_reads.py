"""Reading from the archive off the event loop: a bucket or a mount that hangs keeps only its own readers waiting.

Each read has a thread that nobody waits for at the end, and a few run at a time; syncs and reads of the broker's own
disk have other threads. Reads of the same bytes are one read. A reader that has waited long enough is told so and comes
again; the read goes on, and what it brings is there then.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Hashable
from functools import partial
from typing import Any, TypeVar

from headrace.broker.daemon_thread import in_daemon_thread
from headrace.errors import ArchiveUnavailable
from headrace.log.archived_segment import ArchivedSegment
from headrace.log.reader import ReadPlan

__all__ = ["ArchiveReads", "ReadIsLate"]

_log = logging.getLogger("headrace.broker")
T = TypeVar("T")

READS_AT_ONCE = 4
READS_WAITING_MAX = 1_000


class ReadIsLate(Exception):
    """The read goes on, and its reader has waited long enough."""


class ArchiveReads:
    def __init__(self) -> None:
        self._slots = asyncio.Semaphore(READS_AT_ONCE)
        self._running: dict[Hashable, asyncio.Task[Any]] = {}
        self._is_away = False
        self.reads = 0
        self.failures = 0

    async def fetch(self, plan: ReadPlan, wait_s: float) -> tuple[ReadPlan, bytes | bytearray]:
        """The bytes of a plan for an archived segment, and the plan with the place where they lie."""

        def work() -> tuple[ReadPlan, bytes | bytearray]:
            data = plan.fetch(wait=True)
            assert data is not None
            return plan, data

        assert isinstance(plan.segment, ArchivedSegment)
        return await self.run(("fetch", plan.key), plan.segment, work, wait_s)

    async def run(self, key: Hashable, segment: ArchivedSegment, work: Callable[[], T], wait_s: float) -> T:
        """``work`` on the segment, in a thread; ``ReadIsLate`` if it takes longer than ``wait_s``."""
        task = self._running.get(key)
        if task is None:
            if len(self._running) >= READS_WAITING_MAX:
                raise segment.unavailable(OSError(f"{READS_WAITING_MAX} reads wait for it already"))
            task = asyncio.get_running_loop().create_task(self._work(work))
            self._running[key] = task
            task.add_done_callback(partial(self._done, key))
        done, _ = await asyncio.wait((task,), timeout=wait_s)
        if not done:
            raise ReadIsLate
        result: T = task.result()
        return result

    async def _work(self, work: Callable[[], T]) -> T:
        async with self._slots:
            try:
                result = await in_daemon_thread("headrace-archive-read", work)
            except Exception as error:
                self._note(error)
                raise
        self._note(None)
        return result

    def _note(self, error: Exception | None) -> None:
        """Say once that the archive is away, and once that it is back."""
        self.reads += 1
        if isinstance(error, ArchiveUnavailable):
            self.failures += 1
            if not self._is_away:
                _log.error("%s", error)
            self._is_away = True
        elif self._is_away:
            self._is_away = False
            _log.info("the archive can be read again")

    def _done(self, key: Hashable, task: asyncio.Task[Any]) -> None:
        del self._running[key]
        if not task.cancelled():
            # Where nobody waits any more, nobody else asks for it.
            task.exception()

    async def close(self) -> None:
        """Wait for nothing: what is under way has threads that end by themselves."""
        tasks = list(self._running.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
