"""APIs that a transactional producer calls, in the order in which it calls them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headrace.broker.net.responses import partition_errors
from headrace.broker.permissions import Handler, Operation, Permission, Resource
from headrace.errors import StorageError
from headrace.wire import messages as m
from headrace.wire.api import Api
from headrace.wire.codes import ErrorCode

if TYPE_CHECKING:
    from headrace.broker.broker import Broker
    from headrace.broker.net.request import Request

__all__ = ["HANDLERS"]

_NONE = -1
_INIT_FENCED_SINCE = 4


async def init_producer_id(broker: Broker, request: Request) -> Any:
    """Assign an id to an idempotent producer, or make a producer the owner of a transactional id."""
    message = request.message
    if (message.producer_id == _NONE) != (message.producer_epoch == _NONE):
        return _no_producer_id(ErrorCode.INVALID_REQUEST)
    if message.transactional_id is not None:
        result = await broker.transactions.init(
            message.transactional_id,
            message.transaction_timeout_ms,
            message.producer_id,
            message.producer_epoch,
        )
        if result.error is ErrorCode.PRODUCER_FENCED and request.version < _INIT_FENCED_SINCE:
            return _no_producer_id(ErrorCode.INVALID_PRODUCER_EPOCH)
        return m.InitProducerIdResponse(
            error_code=result.error, producer_id=result.producer_id, producer_epoch=result.epoch
        )
    # An idempotent producer can send its old id after an error. As in Kafka, it receives a new id: the broker
    # increments the epoch only for transactional producers.
    try:
        producer_id = await broker.producer_ids.next()
    except StorageError:
        return _no_producer_id(ErrorCode.KAFKA_STORAGE_ERROR)
    return m.InitProducerIdResponse(producer_id=producer_id, producer_epoch=0)


def _no_producer_id(error_code: ErrorCode) -> Any:
    return m.InitProducerIdResponse(error_code=error_code, producer_id=_NONE, producer_epoch=_NONE)


_TRANSACTIONS_SINCE = 4
_FENCED_SINCE = 2


async def add_partitions_to_txn(broker: Broker, request: Request) -> Any:
    """Add partitions to a producer's transaction before the producer writes to them.

    Up to version 3 a request has one transaction, from version 4 on several. With ``verify_only`` the broker checks
    whether the partitions are in the transaction, and does not add them. The broker adds all partitions of a
    transaction or none.
    """
    message = request.message
    if request.version >= _TRANSACTIONS_SINCE:
        new_result = m.AddPartitionsToTxnResponse.AddPartitionsToTxnResult
        return m.AddPartitionsToTxnResponse(
            results_by_transaction=[
                new_result(
                    transactional_id=transaction.transactional_id,
                    topic_results=_results(
                        broker,
                        request.version,
                        (transaction.transactional_id, transaction.producer_id, transaction.producer_epoch),
                        transaction.topics,
                        verify_only=transaction.verify_only,
                    ),
                )
                for transaction in message.transactions
            ]
        )
    producer = (
        message.v3_and_below_transactional_id,
        message.v3_and_below_producer_id,
        message.v3_and_below_producer_epoch,
    )
    return m.AddPartitionsToTxnResponse(
        results_by_topic_v3_and_below=_results(broker, request.version, producer, message.v3_and_below_topics)
    )


def _results(
    broker: Broker, version: int, producer: tuple[str, int, int], topics: Any, *, verify_only: bool = False
) -> list[Any]:
    partitions = [(topic.name, index) for topic in topics for index in topic.partitions]
    errors = [
        ErrorCode.NONE
        if verify_only or broker.partition(name, index) is not None
        else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        for name, index in partitions
    ]
    if any(errors):
        errors = [error or ErrorCode.OPERATION_NOT_ATTEMPTED for error in errors]
    elif verify_only:
        errors = broker.transactions.verify_partitions(*producer, partitions)
    else:
        error = broker.transactions.add_partitions(*producer, partitions)
        if error is ErrorCode.PRODUCER_FENCED and version < _FENCED_SINCE:
            error = ErrorCode.INVALID_PRODUCER_EPOCH
        errors = [error] * len(partitions)
    new_topic = m.AddPartitionsToTxnResponse.AddPartitionsToTxnTopicResult
    new_partition = m.AddPartitionsToTxnResponse.AddPartitionsToTxnPartitionResult
    remaining = iter(errors)
    return [
        new_topic(
            name=topic.name,
            results_by_partition=[
                new_partition(partition_index=index, partition_error_code=next(remaining))
                for index in topic.partitions
            ],
        )
        for topic in topics
    ]


async def add_offsets_to_txn(broker: Broker, request: Request) -> Any:
    """Add a group to a producer's transaction before the producer commits offsets of the group."""
    message = request.message
    error = broker.transactions.add_group(
        message.transactional_id, message.producer_id, message.producer_epoch, message.group_id
    )
    if error is ErrorCode.PRODUCER_FENCED and request.version < _FENCED_SINCE:
        error = ErrorCode.INVALID_PRODUCER_EPOCH
    return m.AddOffsetsToTxnResponse(error_code=error)


_ABORTABLE_SINCE = 4
_ADDS_SINCE = 5


async def txn_offset_commit(broker: Broker, request: Request) -> Any:
    """Commit offsets of a group as part of a transaction.

    From version 5 on, this request adds the group to the transaction. Older clients must send AddOffsetsToTxn first.
    """
    message = request.message
    version = request.version

    def admit() -> ErrorCode:
        error = broker.transactions.add_group(
            message.transactional_id,
            message.producer_id,
            message.producer_epoch,
            message.group_id,
            may_add=version >= _ADDS_SINCE,
        )
        if error is ErrorCode.PRODUCER_FENCED:
            return ErrorCode.INVALID_PRODUCER_EPOCH
        if error is ErrorCode.INVALID_TXN_STATE and version >= _ABORTABLE_SINCE:
            return ErrorCode.TRANSACTION_ABORTABLE
        return error

    errors = await broker.groups.commit_in_transaction(
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


_BUMPS_SINCE = 5


async def end_txn(broker: Broker, request: Request) -> Any:
    """Commit or abort a transaction, and respond when the decision is on disk.

    From version 5 on, the producer uses the id and epoch of the response for its next transaction.
    """
    message = request.message
    result = await broker.transactions.end(
        message.transactional_id,
        message.producer_id,
        message.producer_epoch,
        commit=message.committed,
        bumps_epoch=request.version >= _BUMPS_SINCE,
    )
    error = result.error
    if error is ErrorCode.PRODUCER_FENCED and request.version < _FENCED_SINCE:
        error = ErrorCode.INVALID_PRODUCER_EPOCH
    return m.EndTxnResponse(error_code=error, producer_id=result.producer_id, producer_epoch=result.epoch)


HANDLERS = {
    Api.INIT_PRODUCER_ID: Handler(
        init_producer_id,
        (
            Permission(Operation.WRITE, Resource.TRANSACTIONAL_ID),
            Permission(Operation.IDEMPOTENT_WRITE, Resource.CLUSTER),
        ),
    ),
    Api.ADD_PARTITIONS_TO_TXN: Handler(
        add_partitions_to_txn,
        (
            Permission(Operation.WRITE, Resource.TRANSACTIONAL_ID),
            Permission(Operation.WRITE, Resource.TOPIC),
        ),
    ),
    Api.ADD_OFFSETS_TO_TXN: Handler(
        add_offsets_to_txn,
        (
            Permission(Operation.WRITE, Resource.TRANSACTIONAL_ID),
            Permission(Operation.READ, Resource.GROUP),
        ),
    ),
    Api.TXN_OFFSET_COMMIT: Handler(
        txn_offset_commit,
        (
            Permission(Operation.WRITE, Resource.TRANSACTIONAL_ID),
            Permission(Operation.READ, Resource.GROUP),
            Permission(Operation.READ, Resource.TOPIC),
        ),
    ),
    Api.END_TXN: Handler(end_txn, (Permission(Operation.WRITE, Resource.TRANSACTIONAL_ID),)),
}
