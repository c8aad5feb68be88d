"""Group commit: an append waits until a sync has covered it, and one sync covers all waiting appends.

While a sync of a partition runs in its thread, further appends accumulate. The next sync covers all of them. So the
busier a partition is, the more appends share one sync. No timer is needed.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from concurrent.futures import ThreadPoolExecutor

from headrace.errors import PartitionFenced, StorageError
from headrace.log.deletion import Deletion
from headrace.log.mark import SyncJob
from headrace.log.partition import PartitionLog

__all__ = ["Committer"]

_log = logging.getLogger("headrace.log")
_MARK_INTERVAL_S = 1.0


class Committer:
    """Runs in one event loop. Partitions that do not wait for syncs are synced every ``flush_interval_s``."""

    def __init__(self, *, threads: int = 4, flush_interval_s: float = 5.0) -> None:
        self._loop = asyncio.get_running_loop()
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="sync")
        self._flush_interval_s = flush_interval_s
        self._waiting: dict[PartitionLog, deque[tuple[int, asyncio.Future[None]]]] = {}
        self._scheduled: set[PartitionLog] = set()
        # Dictionaries instead of sets, because they are ordered: a simulated disk must see the same calls in every run.
        self._unflushed: dict[PartitionLog, None] = {}
        self._unmarked: dict[PartitionLog, None] = {}
        self._unsyncable_marks: set[PartitionLog] = set()
        self._running = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self.syncs = 0
        self._tasks = [
            self._loop.create_task(self._sync_marks_periodically()),
            self._loop.create_task(self._flush_periodically()),
        ]

    def durable(self, log: PartitionLog, end_offset: int) -> asyncio.Future[None] | None:
        """Return a future that completes when all offsets below ``end_offset`` are durable; ``None`` if no wait is
        needed.
        """
        if not log.waits_for_sync:
            self._unflushed[log] = None
            return None
        if log.synced_offset >= end_offset:
            return None
        future: asyncio.Future[None] = self._loop.create_future()
        self._waiting.setdefault(log, deque()).append((end_offset, future))
        if log not in self._scheduled:
            # Start the sync in the next iteration of the event loop, so that further appends of this iteration join it.
            self._scheduled.add(log)
            self._loop.call_soon(self._start_sync, log)
        return future

    async def wait(self, log: PartitionLog, end_offset: int) -> None:
        future = self.durable(log, end_offset)
        if future is not None:
            await future

    def _start_sync(self, log: PartitionLog) -> None:
        self._scheduled.discard(log)
        job = log.begin_sync()
        if job is not None:
            self._running += 1
            self._idle.clear()
            self._threads.submit(self._run, log, job)
        elif log.fenced is not None:
            self._complete_waits(log)

    def _run(self, log: PartitionLog, job: SyncJob) -> None:
        error: OSError | None = None
        try:
            job.run()
        except OSError as sync_error:
            error = sync_error
        self._loop.call_soon_threadsafe(self._on_sync_end, log, job, error)

    def _on_sync_end(self, log: PartitionLog, job: SyncJob, error: OSError | None) -> None:
        self.syncs += 1
        self._running -= 1
        log.end_sync(job, error)
        if error is not None:
            _log.error(
                "%s; offsets %d to %d remain readable; the partition refuses writes: check the disk, then restart"
                " the broker",
                log.fenced,
                log.start_offset,
                log.high_watermark,
            )
        self._unmarked[log] = None
        self._complete_waits(log)
        if log in self._waiting:
            self._start_sync(log)
        if not self._running:
            self._idle.set()

    def _complete_waits(self, log: PartitionLog) -> None:
        """Complete the futures of durable offsets. After a failed sync, fail the remaining futures."""
        waiting = self._waiting.get(log)
        if waiting is None:
            return
        while waiting and waiting[0][0] <= log.synced_offset:
            _, future = waiting.popleft()
            if not future.done():
                future.set_result(None)
        if waiting and log.needs_restart:
            for _, future in waiting:
                if not future.done():
                    future.set_exception(
                        PartitionFenced(
                            f"the batch was written, but may not be on disk: {log.fenced}",
                            hint="check the disk, then restart the broker; the client can then resend the batch",
                        )
                    )
            waiting.clear()
        if not waiting:
            del self._waiting[log]

    async def delete_before(self, log: PartitionLog, offset: int) -> int:
        """Delete everything below ``offset`` durably; returns the new start offset. Cancelling the caller does not
        cancel the deletion.
        """
        deletion = Deletion.begin(log, offset)
        if deletion is None:
            return log.start_offset
        result: asyncio.Future[int] = self._loop.create_future()
        self._running += 1
        self._idle.clear()
        self._threads.submit(self._run_deletion, deletion, result)
        return await result

    def _run_deletion(self, deletion: Deletion, result: asyncio.Future[int]) -> None:
        deletion.run()
        self._loop.call_soon_threadsafe(self._on_deletion_end, deletion, result)

    def _on_deletion_end(self, deletion: Deletion, result: asyncio.Future[int]) -> None:
        self._running -= 1
        if not self._running:
            self._idle.set()
        try:
            start_offset = deletion.end()
        except (OSError, StorageError) as error:
            if not result.done():
                result.set_exception(error)
        else:
            if not result.done():
                result.set_result(start_offset)

    async def _sync_marks_periodically(self) -> None:
        """Sync the marks of the partitions (``mark``) periodically. This is not urgent, because an older mark is also
        true.
        """
        while True:
            await asyncio.sleep(_MARK_INTERVAL_S)
            logs, self._unmarked = self._unmarked, {}
            for log in logs:
                try:
                    await self._loop.run_in_executor(self._threads, log.sync_mark)
                    self._unsyncable_marks.discard(log)
                except OSError as error:
                    self._unmarked[log] = None
                    if log not in self._unsyncable_marks:
                        self._unsyncable_marks.add(log)
                        _log.error("cannot sync the mark of %s: %s; will retry", log.directory, error)

    async def _flush_periodically(self) -> None:
        while True:
            await asyncio.sleep(self._flush_interval_s)
            logs, self._unflushed = self._unflushed, {}
            for log in logs:
                if log.is_syncing:
                    # The running sync began before the newest appends, so they need another sync.
                    self._unflushed[log] = None
                else:
                    self._start_sync(log)

    def forget(self, log: PartitionLog) -> None:
        """Stop syncing a partition that is being deleted, and fail all waits for it."""
        self._unflushed.pop(log, None)
        self._unmarked.pop(log, None)
        self._unsyncable_marks.discard(log)
        for _, future in self._waiting.pop(log, ()):
            if not future.done():
                future.set_exception(PartitionFenced(f"the partition in {log.directory} was deleted"))

    async def settle(self, log: PartitionLog) -> None:
        """Wait until all syncs and deletions of this partition have finished."""
        while log.is_syncing or log.deletions:
            await asyncio.sleep(0.001)

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._idle.wait()
        self._threads.shutdown()
