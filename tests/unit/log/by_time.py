"""Records of a log found by their time, as a broker finds them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import Any

from headrace.broker.archive_reads import ArchiveReads
from headrace.broker.partition import Partition
from headrace.log.partition import PartitionLog
from headrace.records import RecordLimits

__all__ = ["offset_for_time", "offset_of_max_timestamp"]

WAIT_S = 240.0
Place = tuple[int, int] | None


def offset_for_time(log: PartitionLog, timestamp_ms: int) -> Place:
    return _run(log, lambda partition, executor: partition.offset_for_time(timestamp_ms, executor, WAIT_S))


def offset_of_max_timestamp(log: PartitionLog) -> Place:
    return _run(log, lambda partition, executor: partition.offset_of_max_timestamp(executor, WAIT_S))


def _run(log: PartitionLog, find: Callable[[Partition, Executor], Awaitable[Place]]) -> Place:
    nobody: Any = None

    async def found() -> Place:
        with ThreadPoolExecutor(1) as executor:
            return await find(Partition(log, nobody, RecordLimits(), ArchiveReads()), executor)

    return asyncio.run(found())
