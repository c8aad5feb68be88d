"""DescribeTransactions: who holds a transactional id, and what is part of its transaction. Each id once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headrace.broker.response_room import ResponseRoom
from headrace.broker.sizes import text_bytes
from headrace.wire import messages as m
from headrace.wire.codes import ErrorCode

if TYPE_CHECKING:
    from headrace.broker.broker import Broker
    from headrace.broker.request import Request
    from headrace.broker.transactions import DescribedTransaction

__all__ = ["handle"]

_ITEM_BYTES = 256
_TOPIC_BYTES = 128
_PARTITION_BYTES = 40


async def handle(broker: Broker, request: Request) -> Any:
    room = ResponseRoom(broker, request)
    state_of = m.DescribeTransactionsResponse.TransactionState
    response = m.DescribeTransactionsResponse()
    for transactional_id in dict.fromkeys(request.message.transactional_ids):
        found = (
            ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
            if room.is_full
            else broker.transactions.describe(transactional_id)
        )
        if not isinstance(found, ErrorCode) and not room.take(_size(found)):
            found = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        await room.give_turn()
        response.transaction_states.append(
            state_of(error_code=found, transactional_id=transactional_id)
            if isinstance(found, ErrorCode)
            else _state(found)
        )
    return response


def _size(found: DescribedTransaction) -> int:
    size = _ITEM_BYTES + text_bytes(found.id)
    for topic, indexes in found.partitions.items():
        size += _TOPIC_BYTES + text_bytes(topic) + _PARTITION_BYTES * len(indexes)
    return size


def _state(found: DescribedTransaction) -> Any:
    topic_of = m.DescribeTransactionsResponse.TopicData
    return m.DescribeTransactionsResponse.TransactionState(
        transactional_id=found.id,
        transaction_state=found.state,
        transaction_timeout_ms=found.timeout_ms,
        transaction_start_time_ms=found.began_ms,
        producer_id=found.producer_id,
        producer_epoch=found.epoch,
        topics=[topic_of(topic=topic, partitions=indexes) for topic, indexes in found.partitions.items()],
    )
