"""Moving what retention would delete to the archive instead, for topics that ask for it.

The archive is the broker's own, set when it starts; no client can name a place. In it there is one folder, or prefix,
per cluster, topic id and partition. While it cannot be used nothing is deleted, and the reason is said once.

All that waits for the archive is in threads that nobody waits for at the end. One that is told to stop and does not, as
the archive hangs, is left to itself: it decides nothing any more (see ``Archive.interrupt``), and its partition is left
alone until it has ended.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from headrace.broker.daemon_thread import in_daemon_thread
from headrace.errors import ArchiveUnavailable, StorageError
from headrace.log.archive_store import ArchiveStore
from headrace.log.archiving import Archiving
from headrace.log.pace import Interrupted, Pace
from headrace.log.partition import PartitionLog
from headrace.log.retention import outlived

if TYPE_CHECKING:
    from headrace.broker.broker import Broker

__all__ = ["ArchiveCounts", "Archiver"]

_log = logging.getLogger("headrace.broker")
T = TypeVar("T")

_THREAD = "headrace-archive"
_LOOK_S = 0.05
_GRACE_S = 1.0
"""How long a thread has to end once it is told to stop."""
_PAUSE_MAX_S = 600.0
"""The longest pause after a copy that failed; the first one is until the next round, and each is twice the last."""


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
        self._in_trouble: set[PartitionLog] = set()
        self._pauses: dict[PartitionLog, _Pause] = {}
        self._deletion_fails = False
        self._left: dict[PartitionLog, asyncio.Future[Any]] = {}
        self._task: asyncio.Task[None] | None = None
        self._removal: asyncio.Task[None] | None = None
        self._stopping = asyncio.Event()
        self._under_way: threading.Event | None = None
        self.counts = ArchiveCounts()

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._keep_archived())

    @property
    def tasks(self) -> list[asyncio.Task[None]]:
        return [] if self._task is None else [self._task]

    async def stop(self) -> None:
        """Interrupt what is under way; it leaves the partition whole."""
        self._stopping.set()
        if self._under_way is not None:
            self._under_way.set()
        # Whatever has failed, the rest of the broker has to be closed.
        own = [task for task in (self._task, self._removal) if task is not None]
        await asyncio.gather(*own, return_exceptions=True)
        self._task = None
        # What is left the next start goes on with.
        left = list(self._left.values())
        for future in left:
            future.cancel()
        await asyncio.gather(*left, return_exceptions=True)

    async def _keep_archived(self) -> None:
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
            _log.exception("a round of the archiver failed; the next one follows")

    async def check(self) -> None:
        """Say so if the archive cannot be used, so that nobody learns it when old data is wanted."""
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
        """Look at every partition once, and at what deleted topics have left."""
        for name, index, partition in self._broker.partitions.all():
            if self._stopping.is_set():
                return
            if partition.fenced is None:
                await self._archive(name, index, partition.log)
            await asyncio.sleep(0)
        self._forget_deleted()
        await self.remove_deleted()

    def _forget_deleted(self) -> None:
        there = {partition.log for _, _, partition in self._broker.partitions.all()}
        self._in_trouble &= there
        self._pauses = {log: pause for log, pause in self._pauses.items() if log in there}

    async def _archive(self, name: str, index: int, log: PartitionLog) -> None:
        """Move what is old; remove from the archive what lies below the partition's start, or was never finished."""
        if log in self._left:
            return
        moved = 0
        try:
            await self._clean(log)
            if not self._is_pausing(log):
                moved = await self._move(log)
        except Interrupted:
            return
        except Exception as error:
            self.counts.failures += 1
            if log not in self._in_trouble:
                self._in_trouble.add(log)
                _log.error(
                    "%s-%d could not be archived: %s; nothing is deleted, trying again",
                    name,
                    index,
                    error,
                    exc_info=_unforeseen(error),
                )
            return
        if self._is_pausing(log):
            return
        self._in_trouble.discard(log)
        if moved:
            _log.info(
                "archived %d segments of %s-%d below offset %d", moved, name, index, log.archive.end_offset
            )

    async def _clean(self, log: PartitionLog) -> None:
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

        archiving = Archiving.begin(log, outlived(log, broker.trusted_time.now_ms()), pace)
        if archiving is None:
            return 0
        moved = 0
        try:
            while archiving.segments and not archiving.stop.is_set():
                await self._in_thread(log, archiving.stop, archiving.copy)
                segment = archiving.adopt()
                moved += 1
                self.counts.segments += 1
                self.counts.bytes += segment.size
                self._pauses.pop(log, None)
                await asyncio.get_running_loop().run_in_executor(None, segment.remove_files)
        except Interrupted:
            raise
        except Exception:
            # An archive that is away costs no more than the check, and is tried in every round.
            if archiving.has_begun:
                self._pause(log)
            raise
        finally:
            archiving.end()
        return moved

    def _is_pausing(self, log: PartitionLog) -> bool:
        pause = self._pauses.get(log)
        return pause is not None and self._broker.clock.steady() < pause.end_s

    def _pause(self, log: PartitionLog) -> None:
        """Do not send the same bytes in every round to where they failed."""
        last = self._pauses.get(log)
        length_s = self._broker.settings.retention_check_s
        if last is not None:
            length_s = max(length_s, min(2 * last.length_s, _PAUSE_MAX_S))
        self._pauses[log] = _Pause(length_s, self._broker.clock.steady() + length_s)

    async def _in_thread(self, log: PartitionLog, stop: threading.Event, work: Callable[[], T]) -> T:
        """What ``work`` returns; ``Interrupted`` where it does not end after ``stop``."""
        if self._stopping.is_set():
            raise Interrupted
        self._under_way = stop
        thread = asyncio.ensure_future(in_daemon_thread(_THREAD, work))
        try:
            while not thread.done() and not stop.is_set():
                await asyncio.wait((thread,), timeout=_LOOK_S)
            if not thread.done():
                await asyncio.wait((thread,), timeout=_GRACE_S)
        finally:
            self._under_way = None
        if not thread.done():
            log.archive.interrupt(stop)
            self._left[log] = thread
            thread.add_done_callback(partial(self._ended, log))
            raise Interrupted
        return thread.result()

    async def _until_stop(self, work: Callable[[], T]) -> T:
        """What ``work`` returns, in a thread; ``Interrupted`` once the archiver stops, and the thread is left alone."""
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

    def _ended(self, log: PartitionLog, thread: asyncio.Future[Any]) -> None:
        del self._left[log]
        if not thread.cancelled():
            thread.exception()

    # Deleted topics

    async def remove_deleted(self, wait_s: float | None = None) -> None:
        """Remove what the archive has of deleted topics; it goes on where that takes longer than ``wait_s``."""
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
                "%d deleted topics are still in the archive at %s: %s; trying again. %s",
                len(self._broker.partitions.deleted.archived),
                store.location(""),
                error,
                store.advice,
                exc_info=_unforeseen(error),
            )

    async def _remove_each_deleted(self, store: ArchiveStore) -> Exception | None:
        """The first error, if there is one. One topic that cannot be removed does not keep the others."""
        deleted = self._broker.partitions.deleted
        loop = asyncio.get_running_loop()
        failed: dict[str, Exception] = {}
        # A partition that was left in the midst of a move could still put a file there.
        while not self._left and (topics := deleted.archived - failed.keys()):
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
                if not await self._answers(store):
                    break
        return next(iter(failed.values()), None)

    async def _answers(self, store: ArchiveStore) -> bool:
        """Whether the archive can be used: where it cannot, each further try may last as long as a time-out."""
        try:
            await self._until_stop(partial(store.list, ""))
        except OSError:
            return False
        return True


def _unforeseen(error: Exception) -> Exception | None:
    """The error where only its traceback tells what it is."""
    return None if isinstance(error, (OSError, StorageError)) else error
