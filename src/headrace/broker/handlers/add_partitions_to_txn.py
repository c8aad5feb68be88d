"""AddPartitionsToTxn: partitions that a producer is about to write to in its transaction.

Up to version 3 a request is about one transaction, from version 4 about several, each of which may be asked about
(``verify_only``) instead of added to. Partitions of one transaction are added all or not at all.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headrace.wire import messages as m
from headrace.wire.codes import ErrorCode

if TYPE_CHECKING:
    from headrace.broker.broker import Broker
    from headrace.broker.request import Request

__all__ = ["handle"]

_MANY_SINCE = 4
_FENCED_SINCE = 2


async def handle(broker: Broker, request: Request) -> Any:
    message = request.message
    if request.version >= _MANY_SINCE:
        result_of = m.AddPartitionsToTxnResponse.AddPartitionsToTxnResult
        return m.AddPartitionsToTxnResponse(
            results_by_transaction=[
                result_of(
                    transactional_id=one.transactional_id,
                    topic_results=_results(
                        broker,
                        request.version,
                        (one.transactional_id, one.producer_id, one.producer_epoch),
                        one.topics,
                        verify_only=one.verify_only,
                    ),
                )
                for one in message.transactions
            ]
        )
    who = (
        message.v3_and_below_transactional_id,
        message.v3_and_below_producer_id,
        message.v3_and_below_producer_epoch,
    )
    return m.AddPartitionsToTxnResponse(
        results_by_topic_v3_and_below=_results(broker, request.version, who, message.v3_and_below_topics)
    )


def _results(
    broker: Broker, version: int, who: tuple[str, int, int], topics: Any, *, verify_only: bool = False
) -> list[Any]:
    places = [(topic.name, index) for topic in topics for index in topic.partitions]
    errors = [
        ErrorCode.NONE
        if verify_only or broker.partition(name, index) is not None
        else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        for name, index in places
    ]
    if any(errors):
        errors = [error or ErrorCode.OPERATION_NOT_ATTEMPTED for error in errors]
    elif verify_only:
        errors = broker.transactions.verify_partitions(*who, places)
    else:
        error = broker.transactions.add_partitions(*who, places)
        if error is ErrorCode.PRODUCER_FENCED and version < _FENCED_SINCE:
            error = ErrorCode.INVALID_PRODUCER_EPOCH
        errors = [error] * len(places)
    topic_of = m.AddPartitionsToTxnResponse.AddPartitionsToTxnTopicResult
    partition_of = m.AddPartitionsToTxnResponse.AddPartitionsToTxnPartitionResult
    left = iter(errors)
    return [
        topic_of(
            name=topic.name,
            results_by_partition=[
                partition_of(partition_index=index, partition_error_code=next(left))
                for index in topic.partitions
            ],
        )
        for topic in topics
    ]
