"""Group commit: appends wait here until a sync has covered them, and one sync serves all that wait.

While one sync of a partition is in its thread, further appends gather; when it returns, the next one takes
them all. So the busier a partition is, the more appends share one wait for the disk, without any timer.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from concurrent.futures import ThreadPoolExecutor

from headrace.errors import PartitionFenced, StorageError
from headrace.log.deletion import Deletion
from headrace.log.partition import PartitionLog
from headrace.log.sync import SyncJob

__all__ = ["Committer"]

_log = logging.getLogger("headrace.log")
_MARK_INTERVAL_S = 1.0


class Committer:
    """Runs in one event loop. ``flush_interval_s`` is how often partitions that do not wait for syncs are
    synced anyway.
    """

    def __init__(self, *, threads: int = 4, flush_interval_s: float = 5.0) -> None:
        self._loop = asyncio.get_running_loop()
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="sync")
        self._flush_interval_s = flush_interval_s
        self._waiting: dict[PartitionLog, deque[tuple[int, asyncio.Future[None]]]] = {}
        self._kicked: set[PartitionLog] = set()
        # Dictionaries, because they keep an order: what a simulated disk is asked must be the same in every run.
        self._unflushed: dict[PartitionLog, None] = {}
        self._unmarked: dict[PartitionLog, None] = {}
        self._mark_trouble: set[PartitionLog] = set()
        self._running = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self.syncs = 0
        self._tasks = [
            self._loop.create_task(self._keep_marks()),
            self._loop.create_task(self._keep_flushed()),
        ]

    def durable(self, log: PartitionLog, end_offset: int) -> asyncio.Future[None] | None:
        """A future that is done when every offset below ``end_offset`` is safe; ``None`` if it is already, or
        need not be.
        """
        if not log.waits_for_sync:
            self._unflushed[log] = None
            return None
        if log.synced_offset >= end_offset:
            return None
        future: asyncio.Future[None] = self._loop.create_future()
        self._waiting.setdefault(log, deque()).append((end_offset, future))
        if log not in self._kicked:
            # Not at once: what else this turn of the loop appends may join the same sync.
            self._kicked.add(log)
            self._loop.call_soon(self._kick, log)
        return future

    async def wait(self, log: PartitionLog, end_offset: int) -> None:
        future = self.durable(log, end_offset)
        if future is not None:
            await future

    def _kick(self, log: PartitionLog) -> None:
        self._kicked.discard(log)
        job = log.begin_sync()
        if job is not None:
            self._running += 1
            self._idle.clear()
            self._threads.submit(self._run, log, job)
        elif log.fenced is not None:
            self._settle(log)

    def _run(self, log: PartitionLog, job: SyncJob) -> None:
        error: OSError | None = None
        try:
            job.run()
        except OSError as raised:
            error = raised
        self._loop.call_soon_threadsafe(self._done, log, job, error)

    def _done(self, log: PartitionLog, job: SyncJob, error: OSError | None) -> None:
        self.syncs += 1
        self._running -= 1
        log.end_sync(job, error)
        if error is not None:
            _log.error(
                "%s; offsets %d to %d stay readable, and no write is taken before the next start: check the disk",
                log.fenced,
                log.start_offset,
                log.high_watermark,
            )
        self._unmarked[log] = None
        self._settle(log)
        if log in self._waiting:
            self._kick(log)
        if not self._running:
            self._idle.set()

    def _settle(self, log: PartitionLog) -> None:
        """Answer those whose offsets are safe; where the partition was fenced by a failed sync, all of them."""
        waiting = self._waiting.get(log)
        if waiting is None:
            return
        while waiting and waiting[0][0] <= log.synced_offset:
            _, future = waiting.popleft()
            if not future.done():
                future.set_result(None)
        if waiting and log.is_lost:
            for _, future in waiting:
                if not future.done():
                    future.set_exception(
                        PartitionFenced(
                            f"written, but not known to be on disk: {log.fenced}",
                            hint="check the disk, then start the broker again; the client may send it again then",
                        )
                    )
            waiting.clear()
        if not waiting:
            del self._waiting[log]

    async def delete_before(self, log: PartitionLog, offset: int) -> int:
        """Give up everything below ``offset``, durably; returns the log's new start.

        It is carried out even if nobody waits for it any more.
        """
        deletion = Deletion.begin(log, offset)
        if deletion is None:
            return log.start_offset
        ended: asyncio.Future[int] = self._loop.create_future()
        self._running += 1
        self._idle.clear()
        self._threads.submit(self._run_deletion, deletion, ended)
        return await ended

    def _run_deletion(self, deletion: Deletion, ended: asyncio.Future[int]) -> None:
        deletion.run()
        self._loop.call_soon_threadsafe(self._deleted, deletion, ended)

    def _deleted(self, deletion: Deletion, ended: asyncio.Future[int]) -> None:
        self._running -= 1
        if not self._running:
            self._idle.set()
        try:
            start_offset = deletion.end()
        except (OSError, StorageError) as error:
            if not ended.done():
                ended.set_exception(error)
        else:
            if not ended.done():
                ended.set_result(start_offset)

    async def _keep_marks(self) -> None:
        """Make marks durable now and then: an older one is also true, so there is no hurry."""
        while True:
            await asyncio.sleep(_MARK_INTERVAL_S)
            logs, self._unmarked = self._unmarked, {}
            for log in logs:
                try:
                    await self._loop.run_in_executor(self._threads, log.sync_mark)
                    self._mark_trouble.discard(log)
                except OSError as error:
                    self._unmarked[log] = None
                    if log not in self._mark_trouble:
                        self._mark_trouble.add(log)
                        _log.error("the mark of %s is not synced: %s; trying again", log.directory, error)

    async def _keep_flushed(self) -> None:
        while True:
            await asyncio.sleep(self._flush_interval_s)
            logs, self._unflushed = self._unflushed, {}
            for log in logs:
                if log.is_syncing:
                    # That sync began before the newest appends: they get one of their own.
                    self._unflushed[log] = None
                else:
                    self._kick(log)

    def forget(self, log: PartitionLog) -> None:
        """The partition is going away: those who wait for it are told."""
        self._unflushed.pop(log, None)
        self._unmarked.pop(log, None)
        self._mark_trouble.discard(log)
        for _, future in self._waiting.pop(log, ()):
            if not future.done():
                future.set_exception(PartitionFenced(f"the partition in {log.directory} was deleted"))

    async def settle(self, log: PartitionLog) -> None:
        """Wait until no sync and no deletion of this partition is under way."""
        while log.is_syncing or log.deletions:
            await asyncio.sleep(0.001)

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._idle.wait()
        self._threads.shutdown()
