"""Moves old segments to the archive instead of deleting them, for topics with ``headrace.archive.enable``.

The archive's address is set when the broker starts, and clients cannot change it. The archive has one folder or prefix
per cluster, topic id and partition. While the archive is unavailable, the archiver deletes no segments and logs the
reason once.

Only daemon threads wait for the archive. If the archive hangs and a thread does not stop in time, the archiver abandons
it. An abandoned thread cannot change the partition (``Archive.interrupt``), and the archiver skips the partition until
the thread ends.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from headrace.broker.event_loop import in_daemon_thread
from headrace.broker.storage.offline_partition import OfflinePartition
from headrace.errors import ArchiveUnavailable, StorageError
from headrace.log.archive_move import ArchiveMove
from headrace.log.archive_store import ArchiveStore
from headrace.log.pace import Interrupted, Pace
from headrace.log.partition import PartitionLog
from headrace.log.retention import segments_past_retention

if TYPE_CHECKING:
    from headrace.broker.broker import Broker

__all__ = ["ArchiveCounts", "Archiver"]

_log = logging.getLogger("headrace.broker")
T = TypeVar("T")

_THREAD = "headrace-archive"
_POLL_S = 0.05
_GRACE_S = 1.0
"""The longest wait for a thread to stop."""
_PAUSE_MAX_S = 600.0
"""The longest pause after a failed copy. The first pause lasts until the next round, and each later pause doubles."""


class _Pause(NamedTuple):
    length_s: float
    end_s: float


@dataclass(slots=True)
class ArchiveCounts:
    segments: int = 0
    bytes: int = 0
    failures: int = 0


class Archiver:
    def __init__(self, broker: Broker, store: ArchiveStore | None) -> None:
        self._broker = broker
        self._store = store
        self._failing: set[PartitionLog] = set()
        self._pauses: dict[PartitionLog, _Pause] = {}
        self._deletion_fails = False
        self._abandoned: dict[PartitionLog, asyncio.Future[Any]] = {}
        self._task: asyncio.Task[None] | None = None
        self._removal: asyncio.Task[None] | None = None
        self._stopping = asyncio.Event()
        self._stop_current: threading.Event | None = None
        self.counts = ArchiveCounts()

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run_rounds())

    @property
    def tasks(self) -> list[asyncio.Task[None]]:
        return [] if self._task is None else [self._task]

    async def stop(self) -> None:
        """Interrupt the current work. The partition remains intact."""
        self._stopping.set()
        if self._stop_current is not None:
            self._stop_current.set()
        # Ignore failures, because the rest of the broker must still be closed.
        tasks_to_end = [task for task in (self._task, self._removal) if task is not None]
        await asyncio.gather(*tasks_to_end, return_exceptions=True)
        self._task = None
        # The next start completes the work of abandoned threads.
        abandoned = list(self._abandoned.values())
        for future in abandoned:
            future.cancel()
        await asyncio.gather(*abandoned, return_exceptions=True)

    async def _run_rounds(self) -> None:
        await self._round(self.check)
        while not self._stopping.is_set():
            try:
                async with asyncio.timeout(self._broker.settings.retention_check_s):
                    await self._stopping.wait()
            except TimeoutError:
                await self._round(self.run)

    async def _round(self, work: Callable[[], Awaitable[None]]) -> None:
        try:
            await work()
        except Exception:
            self.counts.failures += 1
            _log.exception("the archiver failed unexpectedly; retrying in the next round")

    async def check(self) -> None:
        """Log an error at start if the archive is unavailable."""
        store = self._store
        if store is None:
            return
        try:
            await self._until_stop(partial(store.list, ""))
        except Interrupted:
            return
        except OSError as error:
            self.counts.failures += 1
            _log.error("%s", ArchiveUnavailable(store.location(""), 0, 0, str(error), store.advice))

    async def run(self) -> None:
        """Process every partition once, then the archived files of deleted topics."""
        for name, index, partition in self._broker.partitions.all():
            if self._stopping.is_set():
                return
            if partition.fenced is None:
                await self._archive(name, index, partition.log)
            await asyncio.sleep(0)
        self._drop_deleted()
        await self.remove_deleted()

    def _drop_deleted(self) -> None:
        partitions = [partition for _, _, partition in self._broker.partitions.all()]
        logs = {partition.log for partition in partitions if not isinstance(partition, OfflinePartition)}
        self._failing &= logs
        self._pauses = {log: pause for log, pause in self._pauses.items() if log in logs}

    async def _archive(self, name: str, index: int, log: PartitionLog) -> None:
        """Move old segments. Also remove incomplete copies and archived segments below the partition's start offset."""
        if log in self._abandoned:
            return
        moved_segments = 0
        try:
            await self._remove_obsolete(log)
            if not self._is_pausing(log):
                moved_segments = await self._move(log)
        except Interrupted:
            return
        except Exception as error:
            self.counts.failures += 1
            if log not in self._failing:
                self._failing.add(log)
                _log.error(
                    "cannot archive %s-%d: %s; no records are deleted; retrying",
                    name,
                    index,
                    error,
                    exc_info=_unexpected(error),
                )
            return
        if self._is_pausing(log):
            return
        self._failing.discard(log)
        if moved_segments:
            _log.info(
                "archived %d segments of %s-%d below offset %d",
                moved_segments,
                name,
                index,
                log.archive.end_offset,
            )

    async def _remove_obsolete(self, log: PartitionLog) -> None:
        archive = log.archive
        is_below = bool(archive.entries) and archive.entries[0].end_offset <= log.start_offset
        if log.compacting is not None or not (is_below or archive.unfinished is not None):
            return
        log.compacting = stop = threading.Event()
        try:
            await self._in_thread(log, stop, partial(archive.remove_unfinished, stop))
            if is_below:
                archive.adopt(
                    await self._in_thread(log, stop, partial(archive.drop_below, log.start_offset, stop))
                )
        finally:
            archive.interrupt(stop)
            log.compacting = None

    async def _move(self, log: PartitionLog) -> int:
        broker = self._broker

        def pace(stop: threading.Event) -> Pace:
            return Pace(broker.clock, stop, broker.settings.compaction_bytes_per_s)

        move = ArchiveMove.begin(log, segments_past_retention(log, broker.trusted_time.now_ms()), pace)
        if move is None:
            return 0
        moved_segments = 0
        try:
            while move.segments and not move.stop.is_set():
                await self._in_thread(log, move.stop, move.copy)
                segment = move.adopt()
                moved_segments += 1
                self.counts.segments += 1
                self.counts.bytes += segment.size
                self._pauses.pop(log, None)
                await asyncio.get_running_loop().run_in_executor(None, segment.remove_files)
        except Interrupted:
            raise
        except Exception:
            # Pause only after a copy that had begun. If the archive was unavailable from the start, retry every round.
            if move.has_begun:
                self._pause(log)
            raise
        finally:
            move.end()
        return moved_segments

    def _is_pausing(self, log: PartitionLog) -> bool:
        pause = self._pauses.get(log)
        return pause is not None and self._broker.clock.steady() < pause.end_s

    def _pause(self, log: PartitionLog) -> None:
        """Pause this partition, so that a failed copy is not repeated in every round."""
        previous = self._pauses.get(log)
        length_s = self._broker.settings.retention_check_s
        if previous is not None:
            length_s = max(length_s, min(2 * previous.length_s, _PAUSE_MAX_S))
        self._pauses[log] = _Pause(length_s, self._broker.clock.steady() + length_s)

    async def _in_thread(self, log: PartitionLog, stop: threading.Event, work: Callable[[], T]) -> T:
        """Run ``work`` in a thread. Raises ``Interrupted`` if the thread does not end soon after ``stop`` is set."""
        if self._stopping.is_set():
            raise Interrupted
        self._stop_current = stop
        thread = asyncio.ensure_future(in_daemon_thread(_THREAD, work))
        try:
            while not thread.done() and not stop.is_set():
                await asyncio.wait((thread,), timeout=_POLL_S)
            if not thread.done():
                await asyncio.wait((thread,), timeout=_GRACE_S)
        finally:
            self._stop_current = None
        if not thread.done():
            log.archive.interrupt(stop)
            self._abandoned[log] = thread
            thread.add_done_callback(partial(self._on_thread_ended, log))
            raise Interrupted
        return thread.result()

    async def _until_stop(self, work: Callable[[], T]) -> T:
        """Run ``work`` in a thread. When the archiver stops, abandon the thread and raise ``Interrupted``."""
        if self._stopping.is_set():
            raise Interrupted
        thread = asyncio.ensure_future(in_daemon_thread(_THREAD, work))
        stopping = asyncio.ensure_future(self._stopping.wait())
        try:
            await asyncio.wait((thread, stopping), return_when=asyncio.FIRST_COMPLETED)
            if not thread.done():
                raise Interrupted
            return thread.result()
        finally:
            stopping.cancel()
            thread.cancel()

    def _on_thread_ended(self, log: PartitionLog, thread: asyncio.Future[Any]) -> None:
        del self._abandoned[log]
        if not thread.cancelled():
            thread.exception()

    # Deleted topics

    async def remove_deleted(self, wait_s: float | None = None) -> None:
        """Remove the archived files of deleted topics. After ``wait_s``, return while the removal continues."""
        if self._store is None or self._stopping.is_set() or not self._broker.partitions.deleted.archived:
            return
        if self._removal is None:
            self._removal = asyncio.get_running_loop().create_task(self._remove_deleted(self._store))
        await asyncio.wait((self._removal,), timeout=wait_s)

    async def _remove_deleted(self, store: ArchiveStore) -> None:
        try:
            error = await self._remove_each_deleted(store)
        except Interrupted:
            return
        finally:
            self._removal = None
        if error is None:
            self._deletion_fails = False
        elif not self._deletion_fails:
            self._deletion_fails = True
            _log.error(
                "cannot remove %d deleted topics from the archive at %s: %s; retrying. %s",
                len(self._broker.partitions.deleted.archived),
                store.location(""),
                error,
                store.advice,
                exc_info=_unexpected(error),
            )

    async def _remove_each_deleted(self, store: ArchiveStore) -> Exception | None:
        """Remove every deleted topic, even if the removal of another topic fails. Returns the first error, if any."""
        deleted = self._broker.partitions.deleted
        loop = asyncio.get_running_loop()
        failed: dict[str, Exception] = {}
        # An abandoned thread could still write a file of a deleted topic.
        while not self._abandoned and (topics := deleted.archived - failed.keys()):
            topic = min(topics)
            try:
                await self._until_stop(partial(store.delete, topic))
                await loop.run_in_executor(None, deleted.remove_directory, topic)
                deleted.archived.discard(topic)
            except Interrupted:
                raise
            except Exception as error:
                self.counts.failures += 1
                failed[topic] = error
                if not await self._is_available(store):
                    break
        return next(iter(failed.values()), None)

    async def _is_available(self, store: ArchiveStore) -> bool:
        """Return whether the archive responds. If it does not, every further attempt could wait for a full timeout."""
        try:
            await self._until_stop(partial(store.list, ""))
        except OSError:
            return False
        return True


def _unexpected(error: Exception) -> Exception | None:
    """Return the error if the log needs its traceback, else ``None``."""
    return None if isinstance(error, (OSError, StorageError)) else error
