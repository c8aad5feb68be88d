"""OffsetCommit: how far a group has come, answered when the disk has it."""

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
    version = request.version
    by_id = version >= 10
    names = [
        broker.groups.topics.name_of(topic.topic_id) if by_id else topic.name for topic in message.topics
    ]
    errors = iter(
        await broker.groups.commit(
            message.group_id,
            [
                (
                    name,
                    partition.partition_index,
                    partition.committed_offset,
                    partition.committed_leader_epoch,
                    partition.committed_metadata,
                )
                for name, topic in zip(names, message.topics, strict=True)
                if name is not None
                for partition in topic.partitions
            ],
            member_id=message.member_id,
            instance_id=message.group_instance_id,
            generation=message.generation_id_or_member_epoch,
            retention_ms=message.retention_time_ms,
            knows_group_not_found=version >= 9,
        )
    )
    partition_of = m.OffsetCommitResponse.OffsetCommitResponsePartition
    topic_of = m.OffsetCommitResponse.OffsetCommitResponseTopic
    return m.OffsetCommitResponse(
        topics=[
            topic_of(
                name=topic.name,
                topic_id=topic.topic_id,
                partitions=[
                    partition_of(
                        partition_index=partition.partition_index,
                        error_code=ErrorCode.UNKNOWN_TOPIC_ID if name is None else next(errors),
                    )
                    for partition in topic.partitions
                ],
            )
            for name, topic in zip(names, message.topics, strict=True)
        ]
    )
