"""Looks up records by time, with the broker's code."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import Any

from headrace.broker.storage.archive_access import ArchiveReads
from headrace.broker.storage.partition import Partition
from headrace.log.partition import PartitionLog
from headrace.records import RecordLimits

__all__ = ["offset_for_time", "offset_of_max_timestamp"]

WAIT_S = 240.0
OffsetAndTimestamp = tuple[int, int] | None


def offset_for_time(log: PartitionLog, timestamp_ms: int) -> OffsetAndTimestamp:
    return _run(log, lambda partition, executor: partition.offset_for_time(timestamp_ms, executor, WAIT_S))


def offset_of_max_timestamp(log: PartitionLog) -> OffsetAndTimestamp:
    return _run(log, lambda partition, executor: partition.offset_of_max_timestamp(executor, WAIT_S))


def _run(
    log: PartitionLog, find: Callable[[Partition, Executor], Awaitable[OffsetAndTimestamp]]
) -> OffsetAndTimestamp:
    committer: Any = None

    async def find_offset() -> OffsetAndTimestamp:
        with ThreadPoolExecutor(1) as executor:
            return await find(Partition(log, committer, RecordLimits(), ArchiveReads()), executor)

    return asyncio.run(find_offset())
