"""Moving what retention would delete to the archive instead, for topics that ask for it.

The archive is one folder of the broker's own, set when it starts; no client can name a path. Below it lies one folder
per cluster, topic id and partition. While it cannot be used nothing is deleted, and the reason is said once.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.errors import StorageError
from headrace.log.archiving import Archiving
from headrace.log.pace import Pace
from headrace.log.partition import PartitionLog
from headrace.log.retention import outlived

if TYPE_CHECKING:
    from headrace.broker.broker import Broker

__all__ = ["Archiver", "archive_home"]

_log = logging.getLogger("headrace.broker")


def archive_home(archive_dir: Path | None, cluster_id: str) -> Path | None:
    return None if archive_dir is None else archive_dir.absolute() / cluster_id


class Archiver:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._in_trouble: set[PartitionLog] = set()

    async def archive(self, name: str, index: int, log: PartitionLog, trusted_ms: int) -> None:
        """Move what is old; remove from the archive what lies below the partition's start."""
        try:
            moved = await self._move(log, trusted_ms)
            await self._drop(log)
        except (OSError, StorageError) as error:
            if log not in self._in_trouble:
                self._in_trouble.add(log)
                _log.error(
                    "%s-%d could not be archived: %s; nothing is deleted, trying again", name, index, error
                )
            return
        self._in_trouble.discard(log)
        if moved:
            _log.info(
                "archived %d segments of %s-%d below offset %d", moved, name, index, log.archive.end_offset
            )

    async def _move(self, log: PartitionLog, trusted_ms: int) -> int:
        settings, loop = self._broker.settings, asyncio.get_running_loop()

        def pace(stop: threading.Event) -> Pace:
            return Pace(self._broker.clock, stop, settings.compaction_bytes_per_s)

        archiving = Archiving.begin(log, outlived(log, trusted_ms), pace)
        if archiving is None:
            return 0
        moved = 0
        try:
            while archiving.segments and not archiving.stop.is_set():
                await loop.run_in_executor(None, archiving.copy)
                segment = archiving.adopt()
                moved += 1
                await loop.run_in_executor(None, segment.remove_files)
        finally:
            archiving.end()
        return moved

    async def _drop(self, log: PartitionLog) -> None:
        archive = log.archive
        if (
            not archive.entries
            or archive.entries[0].end_offset > log.start_offset
            or log.compacting is not None
        ):
            return
        log.compacting = threading.Event()
        try:
            loop = asyncio.get_running_loop()
            archive.adopt(await loop.run_in_executor(None, archive.drop_below, log.start_offset))
        finally:
            log.compacting = None
