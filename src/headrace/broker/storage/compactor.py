"""Compaction in the background. The compactor checks every compacted partition regularly, and compacts one at a time.

A thread reads and writes the files. The event loop replaces segments in the partition's list, so readers never see a
partial change. If an error occurs before the decision to replace the old files, the partition is unchanged, and the
next check retries. After the decision, the old files are obsolete. If their replacement fails, the compactor skips the
partition until the next start completes the replacement. The compactor also skips a partition with a damaged batch.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from typing import TYPE_CHECKING

from headrace.broker.event_loop import yield_every
from headrace.broker.metrics.stats import CompactionCounts
from headrace.errors import CorruptBatch, StorageError
from headrace.log.compaction import Compaction, CompactionReport, Due, Group, due, needs_roll
from headrace.log.pace import Interrupted, Pace
from headrace.log.partition import PartitionLog

if TYPE_CHECKING:
    from headrace.broker.broker import Broker

__all__ = ["Compactor"]

_log = logging.getLogger("headrace.broker")
_SYNC_ATTEMPTS_MAX = 100
_PARTITIONS_PER_YIELD = 200


class Compactor:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._stopping = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._current: PartitionLog | None = None
        self._skipped: set[PartitionLog] = set()
        self._failing: set[PartitionLog] = set()
        self._checked_s = broker.clock.steady()
        self.counts = CompactionCounts()

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run_rounds())

    @property
    def tasks(self) -> list[asyncio.Task[None]]:
        return [] if self._task is None else [self._task]

    @property
    def since_check_s(self) -> float:
        """Seconds since the last check of a partition."""
        return self._broker.clock.steady() - self._checked_s

    @property
    def has_died(self) -> bool:
        return self._task is not None and self._task.done()

    @property
    def skipped(self) -> int:
        """The number of partitions that are not compacted until the next start."""
        return sum(
            partition.fenced is None
            and (partition.log in self._skipped or partition.log.unfinished_swap is not None)
            for _, _, partition in self._broker.partitions.all()
        )

    async def stop(self) -> None:
        """Interrupt the current compaction. The partition remains intact."""
        self._stopping.set()
        if self._current is not None and self._current.compacting is not None:
            self._current.compacting.set()
        if self._task is not None:
            await self._task
            self._task = None

    async def _run_rounds(self) -> None:
        while not self._stopping.is_set():
            try:
                async with asyncio.timeout(self._broker.settings.compaction_check_s):
                    await self._stopping.wait()
            except TimeoutError:
                await self.compact()

    async def compact(self) -> None:
        """Check every partition once, and compact those that are due."""
        broker = self._broker
        self._checked_s = broker.clock.steady()
        partitions = broker.partitions.all()
        open_logs = {partition.log for _, _, partition in partitions if partition.fenced is None}
        self._skipped &= open_logs
        self._failing &= open_logs
        for number, (name, index, partition) in enumerate(partitions, 1):
            await yield_every(_PARTITIONS_PER_YIELD, number)
            if self._stopping.is_set():
                return
            self._checked_s = broker.clock.steady()
            if partition.fenced is not None or partition.log in self._skipped:
                continue
            log, trusted_ms = partition.log, broker.trusted_time.now_ms()
            try:
                if needs_roll(log, trusted_ms):
                    log.roll(trusted_ms)
                due_compaction = due(log, trusted_ms)
                if due_compaction is None:
                    continue
                began_s = broker.clock.steady()
                report = await self._compact(log, due_compaction, trusted_ms)
            except Interrupted:
                continue
            except CorruptBatch as error:
                self._skipped.add(log)
                self.counts.failures["damage"] += 1
                broker.report_damage(error)
                _log.error("%s-%d has a damaged batch and is not compacted until the next start", name, index)
            except (OSError, StorageError) as error:
                self.counts.failures["disk"] += 1
                if log not in self._failing:
                    self._failing.add(log)
                    _log.error("cannot compact %s-%d: %s; no records are lost; retrying", name, index, error)
            else:
                self._failing.discard(log)
                self.counts.succeeded(report, broker.clock.steady() - began_s)
                self._log_result(name, index, due_compaction, report)

    async def _compact(self, log: PartitionLog, due_compaction: Due, trusted_ms: int) -> CompactionReport:
        settings = self._broker.settings
        loop = asyncio.get_running_loop()

        def pace(stop: threading.Event) -> Pace:
            return Pace(self._broker.clock, stop, settings.compaction_bytes_per_s)

        compaction = Compaction.begin(
            log,
            due_compaction,
            log.files,
            limits=self._broker.limits.records,
            now_ms=trusted_ms,
            memory_bytes=settings.compaction_memory_bytes,
            pace=pace,
        )
        self._current = log
        try:
            await loop.run_in_executor(None, compaction.read_keys)
            while (group := await loop.run_in_executor(None, compaction.next_group)) is not None:
                if group.markers_removed:
                    await self._forget_markers(compaction, group)
                await loop.run_in_executor(None, compaction.commit, group)
                compaction.adopt(group)
                await loop.run_in_executor(None, compaction.remove_replaced, group)
            return await loop.run_in_executor(None, compaction.finish)
        finally:
            self._current = None
            compaction.end()
            self.counts.ended(compaction.report)

    async def _forget_markers(self, compaction: Compaction, group: Group) -> None:
        """Wait until the whole log is synced, then remove the markers from the partition's stored state.

        The stored state must not contain records that a power loss can remove.
        """
        log = compaction.log
        for _ in range(_SYNC_ATTEMPTS_MAX):
            await self._broker.committer.wait(log, log.end_offset)
            if log.is_synced or not log.waits_for_sync:
                compaction.forget_markers(group)
                return
        # The partition receives too many writes to become synced. The next compaction removes the markers.
        group.swap.discard(log.files)
        raise Interrupted

    def _log_result(self, name: str, index: int, due_compaction: Due, report: CompactionReport) -> None:
        _log.info(
            "compacted %s-%d below offset %d because of %s: from %d to %d bytes, %d records removed",
            name,
            index,
            report.clean_offset,
            due_compaction.reason,
            report.bytes_before,
            report.bytes_after,
            report.records_removed,
        )
