"""APIs that find offsets: the earliest, the latest, the first at a time, and the end of a leader epoch."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING, Any

from headrace.broker.event_loop import Step
from headrace.broker.permissions import Handler, Operation, Permission, Resource
from headrace.broker.refusal import Refusal
from headrace.broker.storage.archive_access import ReadIsLate
from headrace.broker.storage.leader_epochs import check_epoch, epoch_at
from headrace.errors import CorruptBatch, StorageError
from headrace.wire import messages as m
from headrace.wire.api import Api
from headrace.wire.codes import ErrorCode

if TYPE_CHECKING:
    from headrace.broker.broker import Broker
    from headrace.broker.net.request import Request
    from headrace.broker.storage.partition import Partition
    from headrace.wire.message import Message

__all__ = ["HANDLERS"]

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

ListedOffset = tuple[int, int, int]
"""Offset, timestamp and leader epoch. -1 stands for a missing value."""

_EPOCH_SINCE = 4
_ARCHIVE_WAIT_S = 10.0
"""Limit for all archive lookups of one request together."""
_WITHOUT_LOOKUP = {_LATEST, _EARLIEST, _EARLIEST_LOCAL, _LATEST_TIERED, _EARLIEST_PENDING_UPLOAD}
_PARTITIONS_PER_STEP = 1_000
_PARTITIONS_WITHOUT_TURN_MAX = 200
_NOT_FOUND: ListedOffset = (-1, -1, -1)


async def list_offsets(broker: Broker, request: Request) -> Any:
    """Return the earliest or latest offset of each partition, or the first offset at or after a time."""
    message = request.message
    times = Counter(
        (topic.name, part.partition_index) for topic in message.topics for part in topic.partitions
    )
    loop = asyncio.get_running_loop()
    deadline = loop.time() + _ARCHIVE_WAIT_S
    response = m.ListOffsetsResponse()
    if len(times) > _PARTITIONS_WITHOUT_TURN_MAX:
        await broker.turns.wait()
    step = Step(broker.clock, _PARTITIONS_PER_STEP)
    for topic in message.topics:
        topic_response = m.ListOffsetsResponse.ListOffsetsTopicResponse(name=topic.name)
        response.topics.append(topic_response)
        for part in topic.partitions:
            if step.is_over():
                await broker.turns.wait()
                step.restart()
            result = m.ListOffsetsResponse.ListOffsetsPartitionResponse(partition_index=part.partition_index)
            topic_response.partitions.append(result)
            try:
                if times[topic.name, part.partition_index] > 1:
                    raise Refusal(
                        ErrorCode.INVALID_REQUEST, "the request names this partition more than once"
                    )
                wait_s = max(0.0, deadline - loop.time())
                listed = await _find(broker, request, topic.name, part, wait_s)
                if part.timestamp not in _WITHOUT_LOOKUP:
                    # The lookup let the event loop run other requests.
                    step.restart()
            except Refusal as refusal:
                result.error_code = refusal.error_code
            else:
                result.offset, result.timestamp, epoch = listed
                if request.version >= _EPOCH_SINCE:
                    result.leader_epoch = epoch
    return response


async def _find(broker: Broker, request: Request, name: str, part: Message, wait_s: float) -> ListedOffset:
    time = part.timestamp
    if time < 0 and request.version < _SINCE.get(time, request.version + 1):
        raise Refusal(ErrorCode.UNSUPPORTED_VERSION)
    partition = broker.partition(name, part.partition_index)
    if partition is None:
        raise Refusal(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    check_epoch(partition, part.current_leader_epoch)
    try:
        return await _offset_at(broker, partition, time, request.message.isolation_level, wait_s)
    except CorruptBatch as error:
        broker.report_damage(error)
        raise Refusal(ErrorCode.CORRUPT_MESSAGE) from error
    except (StorageError, OSError, ReadIsLate) as error:
        raise Refusal(ErrorCode.KAFKA_STORAGE_ERROR) from error


async def _offset_at(
    broker: Broker, partition: Partition, time: int, isolation_level: int, wait_s: float
) -> ListedOffset:
    if time == _LATEST:
        return _end(partition, isolation_level), -1, partition.leader_epoch
    if time in (_EARLIEST, _EARLIEST_LOCAL):
        start = partition.start_offset if time == _EARLIEST else partition.local_start_offset
        return start, -1, epoch_at(partition, start)
    if time in (_LATEST_TIERED, _EARLIEST_PENDING_UPLOAD):
        return _NOT_FOUND
    # A request can look up many partitions, so let the event loop run other requests before each lookup.
    await asyncio.sleep(0)
    found = await (
        partition.offset_of_max_timestamp(broker.batch_executor, wait_s)
        if time == _MAX_TIMESTAMP
        else partition.offset_for_time(time, broker.batch_executor, wait_s)
    )
    if found is None or found[0] >= _end(partition, isolation_level):
        return _NOT_FOUND
    offset, timestamp = found
    return offset, timestamp, epoch_at(partition, offset)


def _end(partition: Partition, isolation_level: int) -> int:
    """Return the offset up to which a client with this isolation level can read."""
    return partition.last_stable_offset if isolation_level else partition.high_watermark


async def offset_for_leader_epoch(broker: Broker, request: Request) -> Any:
    """Return the end offset of a leader epoch. A client compares it with its position to detect lost records."""
    response = m.OffsetForLeaderEpochResponse()
    for topic in request.message.topics:
        topic_result = m.OffsetForLeaderEpochResponse.OffsetForLeaderTopicResult(topic=topic.topic)
        response.topics.append(topic_result)
        for part in topic.partitions:
            result = m.OffsetForLeaderEpochResponse.EpochEndOffset(partition=part.partition)
            topic_result.partitions.append(result)
            partition = broker.partition(topic.topic, part.partition)
            if partition is None:
                result.error_code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                continue
            try:
                check_epoch(partition, part.current_leader_epoch)
                result.leader_epoch, result.end_offset = partition.end_of_epoch(part.leader_epoch)
            except Refusal as refusal:
                result.error_code = refusal.error_code
            except StorageError:
                result.error_code = ErrorCode.KAFKA_STORAGE_ERROR
    return response


HANDLERS = {
    Api.LIST_OFFSETS: Handler(list_offsets, (Permission(Operation.DESCRIBE, Resource.TOPIC),)),
    Api.OFFSET_FOR_LEADER_EPOCH: Handler(
        offset_for_leader_epoch, (Permission(Operation.DESCRIBE, Resource.TOPIC),)
    ),
}
