"""OffsetDelete: forget how far a group has come with topics that it no longer reads."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headrace.broker.partition_errors import partition_errors
from headrace.wire import messages as m
from headrace.wire.codes import ErrorCode

if TYPE_CHECKING:
    from headrace.broker.broker import Broker
    from headrace.broker.request import Request

__all__ = ["handle"]


async def handle(broker: Broker, request: Request) -> Any:
    message = request.message
    wanted = [
        (topic.name, partition.partition_index) for topic in message.topics for partition in topic.partitions
    ]
    outcome = await broker.groups.delete_offsets(message.group_id, wanted)
    if isinstance(outcome, ErrorCode):
        return m.OffsetDeleteResponse(error_code=outcome)
    topics = partition_errors(
        message.topics,
        outcome,
        m.OffsetDeleteResponse.OffsetDeleteResponseTopic,
        m.OffsetDeleteResponse.OffsetDeleteResponsePartition,
    )
    return m.OffsetDeleteResponse(topics=topics)
