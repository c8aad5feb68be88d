"""Compaction in the background: looks at every compacted partition now and then, and works on one at a time.

What reads and writes files runs in a thread; what changes the partition's list of segments runs in the event loop, so
readers never see half a change. Errors before a swap is decided leave the partition as it was, and are tried again at
the next look. After the decision the old files count no more, so a partition whose swap could not be finished is left
alone until the next start finishes it; so is one with a damaged batch.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from typing import TYPE_CHECKING

from headrace.broker.stats import CompactionCounts
from headrace.errors import CorruptBatch, StorageError
from headrace.log.compaction import Compaction, CompactionReport, Due, Group, due, needs_roll
from headrace.log.pace import Interrupted, Pace
from headrace.log.partition import PartitionLog

if TYPE_CHECKING:
    from headrace.broker.broker import Broker

__all__ = ["Compactor"]

_log = logging.getLogger("headrace.broker")
_TRIES_TO_SYNC = 100


class Compactor:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._stopping = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._under_way: PartitionLog | None = None
        self._left_alone: set[PartitionLog] = set()
        self._in_trouble: set[PartitionLog] = set()
        self._looked_s = broker.clock.steady()
        self.counts = CompactionCounts()

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._keep_compacted())

    @property
    def tasks(self) -> list[asyncio.Task[None]]:
        return [] if self._task is None else [self._task]

    @property
    def since_look_s(self) -> float:
        """How long ago it last looked for something to compact."""
        return self._broker.clock.steady() - self._looked_s

    @property
    def has_died(self) -> bool:
        return self._task is not None and self._task.done()

    @property
    def left_alone(self) -> int:
        """Partitions that are not compacted before the next start."""
        return sum(
            partition.fenced is None
            and (partition.log in self._left_alone or partition.log.unsettled is not None)
            for _, _, partition in self._broker.partitions.all()
        )

    async def stop(self) -> None:
        """Interrupt what is under way; it leaves the partition whole."""
        self._stopping.set()
        if self._under_way is not None and self._under_way.compacting is not None:
            self._under_way.compacting.set()
        if self._task is not None:
            await self._task
            self._task = None

    async def _keep_compacted(self) -> None:
        while not self._stopping.is_set():
            try:
                async with asyncio.timeout(self._broker.settings.compaction_check_s):
                    await self._stopping.wait()
            except TimeoutError:
                await self.compact()

    async def compact(self) -> None:
        """Look at every partition once, and compact those where it is worth it."""
        broker = self._broker
        self._looked_s = broker.clock.steady()
        known = {partition.log for _, _, partition in broker.partitions.all() if partition.fenced is None}
        self._left_alone &= known
        self._in_trouble &= known
        for name, index, partition in broker.partitions.all():
            if self._stopping.is_set():
                return
            self._looked_s = broker.clock.steady()
            if partition.fenced is not None or partition.log in self._left_alone:
                continue
            log, trusted_ms = partition.log, broker.trusted_time.now_ms()
            try:
                if needs_roll(log, trusted_ms):
                    log.roll(trusted_ms)
                found = due(log, trusted_ms)
                if found is None:
                    continue
                began_s = broker.clock.steady()
                report = await self._compact(log, found, trusted_ms)
            except Interrupted:
                continue
            except CorruptBatch as error:
                self._left_alone.add(log)
                self.counts.failures["damage"] += 1
                broker.say_damage(error)
                _log.error("%s-%d is not compacted before the next start: a batch is damaged", name, index)
            except (OSError, StorageError) as error:
                self.counts.failures["disk"] += 1
                if log not in self._in_trouble:
                    self._in_trouble.add(log)
                    _log.error("%s-%d could not be compacted: %s; nothing is lost", name, index, error)
            else:
                self._in_trouble.discard(log)
                self.counts.finished(report, broker.clock.steady() - began_s)
                self._say(name, index, found, report)

    async def _compact(self, log: PartitionLog, found: Due, trusted_ms: int) -> CompactionReport:
        settings = self._broker.settings
        loop = asyncio.get_running_loop()

        def pace(stop: threading.Event) -> Pace:
            return Pace(self._broker.clock, stop, settings.compaction_bytes_per_s)

        compaction = Compaction.begin(
            log,
            found,
            log.files,
            limits=self._broker.limits.records,
            now_ms=trusted_ms,
            memory_bytes=settings.compaction_memory_bytes,
            pace=pace,
        )
        self._under_way = log
        try:
            await loop.run_in_executor(None, compaction.read_keys)
            while (group := await loop.run_in_executor(None, compaction.next_group)) is not None:
                if group.markers_removed:
                    await self._forget_markers(compaction, group)
                await loop.run_in_executor(None, compaction.decide, group)
                compaction.adopt(group)
                await loop.run_in_executor(None, compaction.settle, group)
            return await loop.run_in_executor(None, compaction.finish)
        finally:
            self._under_way = None
            compaction.end()
            self.counts.ended(compaction.report)

    async def _forget_markers(self, compaction: Compaction, group: Group) -> None:
        """At a moment when all is synced: the snapshot that is left must not tell of more than a power loss leaves."""
        log = compaction.log
        for _ in range(_TRIES_TO_SYNC):
            await self._broker.committer.wait(log, log.end_offset)
            if log.is_synced or not log.waits_for_sync:
                compaction.forget_markers(group)
                return
        # Too busy now; the markers can wait for the next time.
        group.swap.discard(log.files)
        raise Interrupted

    def _say(self, name: str, index: int, found: Due, report: CompactionReport) -> None:
        _log.info(
            "compacted %s-%d below offset %d by %s: %d bytes are %d, %d records replaced or deleted",
            name,
            index,
            report.clean_offset,
            found.reason,
            report.bytes_before,
            report.bytes_after,
            report.records_removed,
        )
