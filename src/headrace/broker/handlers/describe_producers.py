"""DescribeProducers: who writes to a partition, under which epoch, and whose transaction is open since when."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headrace.errors import StorageError
from headrace.wire import messages as m
from headrace.wire.codes import ErrorCode

if TYPE_CHECKING:
    from headrace.broker.broker import Broker
    from headrace.broker.partition import Partition
    from headrace.broker.request import Request

__all__ = ["handle"]

_NONE = -1


async def handle(broker: Broker, request: Request) -> Any:
    response = m.DescribeProducersResponse()
    for topic in request.message.topics:
        answer = m.DescribeProducersResponse.TopicResponse(name=topic.name)
        response.topics.append(answer)
        for index in topic.partition_indexes:
            result = m.DescribeProducersResponse.PartitionResponse(partition_index=index)
            answer.partitions.append(result)
            partition = broker.partition(topic.name, index)
            if partition is None:
                result.error_code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                continue
            try:
                result.active_producers = _producers(partition)
            except StorageError as error:
                result.error_code = ErrorCode.KAFKA_STORAGE_ERROR
                result.error_message = error.message
    return response


def _producers(partition: Partition) -> list[Any]:
    open_ones = partition.open_transactions()
    found = []
    for producer in partition.producers():
        last = producer.batches[-1] if producer.batches else None
        open_one = open_ones.get(producer.producer_id)
        found.append(
            m.DescribeProducersResponse.ProducerState(
                producer_id=producer.producer_id,
                producer_epoch=producer.epoch,
                last_sequence=_NONE if last is None else last.last_sequence,
                last_timestamp=producer.seen_ms if last is None else last.timestamp,
                coordinator_epoch=producer.coordinator_epoch,
                current_txn_start_offset=_NONE if open_one is None else open_one.first_offset,
            )
        )
    return found
