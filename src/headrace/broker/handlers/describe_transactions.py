"""DescribeTransactions: who holds a transactional id, and what is part of its transaction."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headrace.wire import messages as m
from headrace.wire.codes import ErrorCode

if TYPE_CHECKING:
    from headrace.broker.broker import Broker
    from headrace.broker.request import Request

__all__ = ["handle"]


async def handle(broker: Broker, request: Request) -> Any:
    return m.DescribeTransactionsResponse(
        transaction_states=[_state(broker, one) for one in request.message.transactional_ids]
    )


def _state(broker: Broker, transactional_id: str) -> Any:
    found = broker.transactions.describe(transactional_id)
    state_of = m.DescribeTransactionsResponse.TransactionState
    if isinstance(found, ErrorCode):
        return state_of(error_code=found, transactional_id=transactional_id)
    topic_of = m.DescribeTransactionsResponse.TopicData
    return state_of(
        transactional_id=found.id,
        transaction_state=found.state,
        transaction_timeout_ms=found.timeout_ms,
        transaction_start_time_ms=found.began_ms,
        producer_id=found.producer_id,
        producer_epoch=found.epoch,
        topics=[topic_of(topic=topic, partitions=indexes) for topic, indexes in found.partitions.items()],
    )
