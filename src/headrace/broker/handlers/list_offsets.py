"""ListOffsets: where a partition begins and ends, and where a time is in it."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING, Any

from headrace.broker.archive_reads import ReadIsLate
from headrace.broker.epochs import check_epoch, epoch_at
from headrace.broker.refusal import Refusal
from headrace.errors import CorruptBatch, StorageError
from headrace.wire import messages as m
from headrace.wire.codes import ErrorCode

if TYPE_CHECKING:
    from headrace.broker.broker import Broker
    from headrace.broker.partition import Partition
    from headrace.broker.request import Request
    from headrace.wire.message import Message

__all__ = ["handle"]

_LATEST = -1
_EARLIEST = -2
_MAX_TIMESTAMP = -3
_EARLIEST_LOCAL = -4
_LATEST_TIERED = -5
_EARLIEST_PENDING_UPLOAD = -6

_SINCE = {
    _LATEST: 1,
    _EARLIEST: 1,
    _MAX_TIMESTAMP: 7,
    _EARLIEST_LOCAL: 8,
    _LATEST_TIERED: 9,
    _EARLIEST_PENDING_UPLOAD: 11,
}

Place = tuple[int, int, int]
"""Offset, timestamp and leader epoch, each -1 where there is none."""

_EPOCH_SINCE = 4
_ARCHIVE_WAIT_S = 10.0
"""For all that one request has to look up in the archive."""
_NOWHERE: Place = (-1, -1, -1)


async def handle(broker: Broker, request: Request) -> Any:
    message = request.message
    times = Counter(
        (topic.name, part.partition_index) for topic in message.topics for part in topic.partitions
    )
    loop = asyncio.get_running_loop()
    deadline = loop.time() + _ARCHIVE_WAIT_S
    response = m.ListOffsetsResponse()
    for topic in message.topics:
        answer = m.ListOffsetsResponse.ListOffsetsTopicResponse(name=topic.name)
        response.topics.append(answer)
        for part in topic.partitions:
            result = m.ListOffsetsResponse.ListOffsetsPartitionResponse(partition_index=part.partition_index)
            answer.partitions.append(result)
            try:
                if times[topic.name, part.partition_index] > 1:
                    raise Refusal(ErrorCode.INVALID_REQUEST, "the partition is asked for more than once")
                wait_s = max(0.0, deadline - loop.time())
                place = await _find(broker, request, topic.name, part, wait_s)
            except Refusal as refusal:
                result.error_code = refusal.error_code
            else:
                result.offset, result.timestamp, epoch = place
                if request.version >= _EPOCH_SINCE:
                    result.leader_epoch = epoch
    return response


async def _find(broker: Broker, request: Request, name: str, part: Message, wait_s: float) -> Place:
    time = part.timestamp
    if time < 0 and request.version < _SINCE.get(time, request.version + 1):
        raise Refusal(ErrorCode.UNSUPPORTED_VERSION)
    partition = broker.partition(name, part.partition_index)
    if partition is None:
        raise Refusal(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    check_epoch(partition, part.current_leader_epoch)
    try:
        return await _place(broker, partition, time, request.message.isolation_level, wait_s)
    except CorruptBatch as error:
        broker.say_damage(error)
        raise Refusal(ErrorCode.CORRUPT_MESSAGE) from error
    except (StorageError, OSError, ReadIsLate) as error:
        raise Refusal(ErrorCode.KAFKA_STORAGE_ERROR) from error


async def _place(
    broker: Broker, partition: Partition, time: int, isolation_level: int, wait_s: float
) -> Place:
    if time == _LATEST:
        return _end(partition, isolation_level), -1, partition.leader_epoch
    if time in (_EARLIEST, _EARLIEST_LOCAL):
        start = partition.start_offset if time == _EARLIEST else partition.local_start_offset
        return start, -1, epoch_at(partition, start)
    if time in (_LATEST_TIERED, _EARLIEST_PENDING_UPLOAD):
        return _NOWHERE
    # Reads and walks of many partitions add up: others are served between them.
    await asyncio.sleep(0)
    found = await (
        partition.offset_of_max_timestamp(broker.walker, wait_s)
        if time == _MAX_TIMESTAMP
        else partition.offset_for_time(time, broker.walker, wait_s)
    )
    if found is None or found[0] >= _end(partition, isolation_level):
        return _NOWHERE
    offset, timestamp = found
    return offset, timestamp, epoch_at(partition, offset)


def _end(partition: Partition, isolation_level: int) -> int:
    """How far a reader of this isolation may see."""
    return partition.last_stable_offset if isolation_level else partition.high_watermark
