"""APIs that describe producers and transactions."""

from __future__ import annotations

from itertools import compress
from typing import TYPE_CHECKING, Any

from headrace.broker.limits import text_bytes
from headrace.broker.net.responses import ResponseRoom, partitions_once
from headrace.broker.permissions import Handler, Operation, Permission, Resource
from headrace.broker.transactions import State
from headrace.broker.transactions.id_pattern import InvalidPattern, Pattern, search
from headrace.errors import StorageError
from headrace.wire import messages as m
from headrace.wire.api import Api
from headrace.wire.codes import ErrorCode

if TYPE_CHECKING:
    from headrace.broker.broker import Broker
    from headrace.broker.net.request import Request
    from headrace.broker.storage.partition import Partition
    from headrace.broker.transactions import DescribedTransaction

__all__ = ["HANDLERS"]

_NO_OFFSET = -1
_PRODUCER_BYTES = 256


async def describe_producers(broker: Broker, request: Request) -> Any:
    """Return the producers of each partition with their epochs and open transactions, each partition once."""
    await broker.turns.take()
    room = ResponseRoom(broker, request)
    response = m.DescribeProducersResponse()
    requested_partitions = partitions_once(
        (topic.name, topic.partition_indexes) for topic in request.message.topics
    )
    for name, indexes in requested_partitions.items():
        topic_response = m.DescribeProducersResponse.TopicResponse(name=name)
        response.topics.append(topic_response)
        for index in indexes:
            await room.yield_if_due()
            result = m.DescribeProducersResponse.PartitionResponse(partition_index=index)
            topic_response.partitions.append(result)
            partition = broker.partition(name, index)
            if partition is None:
                result.error_code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                continue
            try:
                if room.take(_PRODUCER_BYTES * partition.producer_count):
                    result.active_producers = _producers(partition)
                else:
                    # This error makes Kafka's admin client retry the partition.
                    result.error_code = ErrorCode.NOT_LEADER_OR_FOLLOWER
                    result.error_message = (
                        f"the response is full (limit {room.bytes_max} bytes): retry this partition"
                    )
            except StorageError as error:
                result.error_code = ErrorCode.KAFKA_STORAGE_ERROR
                result.error_message = error.message
    return response


def _producers(partition: Partition) -> list[Any]:
    transactions = partition.open_transactions()
    states = []
    for producer in partition.producers():
        last = producer.batches[-1] if producer.batches else None
        transaction = transactions.get(producer.producer_id)
        states.append(
            m.DescribeProducersResponse.ProducerState(
                producer_id=producer.producer_id,
                producer_epoch=producer.epoch,
                last_sequence=_NO_OFFSET if last is None else last.last_sequence,
                last_timestamp=producer.seen_ms if last is None else last.timestamp,
                coordinator_epoch=producer.coordinator_epoch,
                current_txn_start_offset=_NO_OFFSET if transaction is None else transaction.first_offset,
            )
        )
    return states


_ITEM_BYTES = 256
_TOPIC_BYTES = 128
_PARTITION_BYTES = 40


async def describe_transactions(broker: Broker, request: Request) -> Any:
    """Return the producer of each transactional id and the partitions of its transaction, each id once."""
    await broker.turns.take()
    room = ResponseRoom(broker, request)
    new_state = m.DescribeTransactionsResponse.TransactionState
    response = m.DescribeTransactionsResponse()
    for transactional_id in dict.fromkeys(request.message.transactional_ids):
        transaction = (
            ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
            if room.is_full
            else broker.transactions.describe(transactional_id)
        )
        if not isinstance(transaction, ErrorCode) and not room.take(_size(transaction)):
            transaction = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        await room.yield_if_due()
        response.transaction_states.append(
            new_state(error_code=transaction, transactional_id=transactional_id)
            if isinstance(transaction, ErrorCode)
            else _state(transaction)
        )
    return response


def _size(transaction: DescribedTransaction) -> int:
    size = _ITEM_BYTES + text_bytes(transaction.id)
    for topic, indexes in transaction.partitions.items():
        size += _TOPIC_BYTES + text_bytes(topic) + _PARTITION_BYTES * len(indexes)
    return size


def _state(transaction: DescribedTransaction) -> Any:
    new_topic = m.DescribeTransactionsResponse.TopicData
    return m.DescribeTransactionsResponse.TransactionState(
        transactional_id=transaction.id,
        transaction_state=transaction.state,
        transaction_timeout_ms=transaction.timeout_ms,
        transaction_start_time_ms=transaction.began_ms,
        producer_id=transaction.producer_id,
        producer_epoch=transaction.epoch,
        topics=[
            new_topic(topic=topic, partitions=indexes) for topic, indexes in transaction.partitions.items()
        ],
    )


_STATES = {state.value for state in State}


async def list_transactions(broker: Broker, request: Request) -> Any:
    """Return the transactional ids, filtered by state, producer id, duration and name pattern."""
    message = request.message
    await broker.turns.take()
    transactions = broker.transactions.list_transactions(
        states=set(message.state_filters),
        producer_ids=set(message.producer_id_filters),
        open_ms_min=message.duration_filter,
    )
    if message.transactional_id_pattern:
        try:
            pattern = Pattern(message.transactional_id_pattern)
            matches = await search(
                pattern, [transaction.id for transaction in transactions], broker.pattern_executor
            )
        except InvalidPattern as error:
            # The response has no field for an error message, so the broker logs it.
            broker.notices.request_limited(
                "invalid-pattern", f"{error.message}; {error.hint}", {"client": request.client_host}
            )
            return m.ListTransactionsResponse(error_code=ErrorCode.INVALID_REGULAR_EXPRESSION)
        transactions = list(compress(transactions, matches))
    new_state = m.ListTransactionsResponse.TransactionState
    return m.ListTransactionsResponse(
        unknown_state_filters=[
            state for state in dict.fromkeys(message.state_filters) if state not in _STATES
        ],
        transaction_states=[
            new_state(
                transactional_id=transaction.id,
                producer_id=transaction.producer_id,
                transaction_state=transaction.state,
            )
            for transaction in transactions
        ],
    )


HANDLERS = {
    Api.DESCRIBE_PRODUCERS: Handler(describe_producers, (Permission(Operation.READ, Resource.TOPIC),)),
    Api.DESCRIBE_TRANSACTIONS: Handler(
        describe_transactions,
        (
            Permission(Operation.DESCRIBE, Resource.TRANSACTIONAL_ID),
            Permission(Operation.DESCRIBE, Resource.TOPIC),
        ),
    ),
    Api.LIST_TRANSACTIONS: Handler(
        list_transactions, (Permission(Operation.DESCRIBE, Resource.TRANSACTIONAL_ID),)
    ),
}
