"""TxnOffsetCommit: how far a group has come, if the transaction is committed.

From version 5 on it makes the group part of the transaction by itself; before, AddOffsetsToTxn has to come first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headrace.broker.partition_errors import partition_errors
from headrace.wire import messages as m
from headrace.wire.codes import ErrorCode

if TYPE_CHECKING:
    from headrace.broker.broker import Broker
    from headrace.broker.request import Request

__all__ = ["handle"]

_ABORTABLE_SINCE = 4
_ADDS_SINCE = 5


async def handle(broker: Broker, request: Request) -> Any:
    message = request.message
    version = request.version

    def admit() -> ErrorCode:
        error = broker.transactions.add_group(
            message.transactional_id,
            message.producer_id,
            message.producer_epoch,
            message.group_id,
            adds=version >= _ADDS_SINCE,
        )
        if error is ErrorCode.PRODUCER_FENCED:
            return ErrorCode.INVALID_PRODUCER_EPOCH
        if error is ErrorCode.INVALID_TXN_STATE and version >= _ABORTABLE_SINCE:
            return ErrorCode.TRANSACTION_ABORTABLE
        return error

    errors = await broker.groups.commit_in(
        message.transactional_id,
        message.group_id,
        [
            (
                topic.name,
                partition.partition_index,
                partition.committed_offset,
                partition.committed_leader_epoch,
                partition.committed_metadata,
            )
            for topic in message.topics
            for partition in topic.partitions
        ],
        admit,
        member_id=message.member_id,
        instance_id=message.group_instance_id,
        generation=message.generation_id,
    )
    topics = partition_errors(
        message.topics,
        errors,
        m.TxnOffsetCommitResponse.TxnOffsetCommitResponseTopic,
        m.TxnOffsetCommitResponse.TxnOffsetCommitResponsePartition,
    )
    return m.TxnOffsetCommitResponse(topics=topics)
