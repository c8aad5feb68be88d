"""Whether a topic holds records with keys: a look at its log, taken when somebody asks.

Keys are rarely a matter of single records: who writes with keys does so from the first batch on. So a few batches of
each partition are looked at, from its start to its end, and one key is enough. A topic in which only some records in
between have keys can pass for one without.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from concurrent.futures import Executor

from headrace.broker.archive_reads import ReadIsLate
from headrace.broker.offline_partition import OfflinePartition
from headrace.broker.partition import Partition
from headrace.errors import StorageError
from headrace.records import RecordError, RecordLimits, check_batch, iter_headers, open_batch

__all__ = ["holds_keys"]

_PLACES = 8
_READ_BYTES = 64 * 1024
_ARCHIVE_WAIT_S = 5.0
"""For all that one look reads of the archive."""
_PARTITIONS_MAX = 100
_RECORDS_MAX = 20_000


async def holds_keys(partitions: Iterable[Partition], limits: RecordLimits, executor: Executor) -> bool:
    """Looks at no more than a hundred partitions, those with most records first. The executor unpacks what is read: a
    few bytes may unpack to many.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + _ARCHIVE_WAIT_S
    served = [one for one in partitions if not isinstance(one, OfflinePartition)]
    served.sort(key=lambda one: one.end_offset - one.start_offset, reverse=True)
    for partition in served[:_PARTITIONS_MAX]:
        for offset in _places(partition):
            left_s = deadline - loop.time()
            if left_s <= 0 and offset < partition.local_start_offset:
                continue
            data = await _read(partition, offset, left_s)
            if not data:
                continue
            if await loop.run_in_executor(executor, _has_key, data, limits):
                return True
    return False


def _places(partition: Partition) -> Iterator[int]:
    """Offsets from the start to the last record, evenly."""
    start, end = partition.start_offset, partition.high_watermark
    seen = None
    for step in range(_PLACES + 1):
        offset = start + (end - 1 - start) * step // _PLACES
        if start <= offset < end and offset != seen:
            seen = offset
            yield offset


async def _read(partition: Partition, offset: int, wait_s: float) -> memoryview:
    """What cannot be read says nothing; other places may."""
    try:
        piece = await partition.read(max(offset, partition.start_offset), _READ_BYTES, max(wait_s, 0.0))
    except (StorageError, OSError, ReadIsLate):
        return memoryview(b"")
    return piece.data


def _has_key(data: memoryview, limits: RecordLimits) -> bool:
    try:
        for position, header in iter_headers(data):
            if header.is_control:
                continue
            if _batch_has_key(data[position : position + header.size], header.count, limits):
                return True
    except RecordError:
        return False
    return False


def _batch_has_key(batch: memoryview, count: int, limits: RecordLimits) -> bool:
    if count > _RECORDS_MAX:
        return not check_batch(batch, limits).has_null_key
    return any(record.key is not None for record in open_batch(batch, limits).records)
