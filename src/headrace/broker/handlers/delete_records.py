"""DeleteRecords: give up everything before an offset, durably."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headrace.broker.names import is_internal
from headrace.broker.refusal import Refusal
from headrace.errors import StorageError
from headrace.wire import messages as m
from headrace.wire.codes import ErrorCode

if TYPE_CHECKING:
    from headrace.broker.broker import Broker
    from headrace.broker.request import Request

__all__ = ["handle"]

_TO_THE_END = -1


async def handle(broker: Broker, request: Request) -> Any:
    response = m.DeleteRecordsResponse()
    for topic in request.message.topics:
        answer = m.DeleteRecordsResponse.DeleteRecordsTopicResult(name=topic.name)
        response.topics.append(answer)
        for part in topic.partitions:
            result = m.DeleteRecordsResponse.DeleteRecordsPartitionResult(
                partition_index=part.partition_index, low_watermark=-1
            )
            answer.partitions.append(result)
            try:
                result.low_watermark = await _delete(broker, topic.name, part.partition_index, part.offset)
            except Refusal as refusal:
                result.error_code = refusal.error_code
    return response


async def _delete(broker: Broker, name: str, index: int, offset: int) -> int:
    topic = broker.catalog.topic(name)
    partition = broker.partition(name, index)
    if topic is None or partition is None:
        raise Refusal(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    if is_internal(name):
        raise Refusal(ErrorCode.INVALID_TOPIC_EXCEPTION, f"{name} is not a topic for users")
    if not broker.catalog.log_config(topic).is_trimmed:
        raise Refusal(ErrorCode.POLICY_VIOLATION, f"the cleanup.policy of {name} does not delete")
    try:
        wanted = partition.high_watermark if offset == _TO_THE_END else offset
        if not 0 <= wanted <= partition.high_watermark:
            raise Refusal(ErrorCode.OFFSET_OUT_OF_RANGE)
        return await partition.delete_before(wanted)
    except StorageError as error:
        raise Refusal(ErrorCode.KAFKA_STORAGE_ERROR, error.message) from error
