"""OffsetDelete: forget how far a group has come with topics that it no longer reads."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

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
    errors = iter(outcome)
    topic_of = m.OffsetDeleteResponse.OffsetDeleteResponseTopic
    partition_of = m.OffsetDeleteResponse.OffsetDeleteResponsePartition
    return m.OffsetDeleteResponse(
        topics=[
            topic_of(
                name=topic.name,
                partitions=[
                    partition_of(partition_index=partition.partition_index, error_code=next(errors))
                    for partition in topic.partitions
                ],
            )
            for topic in message.topics
        ]
    )
