"""OffsetForLeaderEpoch: where an epoch ended, so that a client notices that its tail was lost."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headrace.broker.epochs import check_epoch
from headrace.broker.refusal import Refusal
from headrace.errors import StorageError
from headrace.wire import messages as m
from headrace.wire.codes import ErrorCode

if TYPE_CHECKING:
    from headrace.broker.broker import Broker
    from headrace.broker.request import Request

__all__ = ["handle"]


async def handle(broker: Broker, request: Request) -> Any:
    response = m.OffsetForLeaderEpochResponse()
    for topic in request.message.topics:
        answer = m.OffsetForLeaderEpochResponse.OffsetForLeaderTopicResult(topic=topic.topic)
        response.topics.append(answer)
        for part in topic.partitions:
            result = m.OffsetForLeaderEpochResponse.EpochEndOffset(partition=part.partition)
            answer.partitions.append(result)
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
