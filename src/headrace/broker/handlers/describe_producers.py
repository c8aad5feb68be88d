"""DescribeProducers: who writes to a partition, under which epoch, and whose transaction is open since when.

Each partition is answered once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headrace.broker.named_once import partitions_once
from headrace.broker.response_room import ResponseRoom
from headrace.errors import StorageError
from headrace.wire import messages as m
from headrace.wire.codes import ErrorCode

if TYPE_CHECKING:
    from headrace.broker.broker import Broker
    from headrace.broker.partition import Partition
    from headrace.broker.request import Request

__all__ = ["handle"]

_NONE = -1
_PRODUCER_BYTES = 256


async def handle(broker: Broker, request: Request) -> Any:
    room = ResponseRoom(broker, request)
    response = m.DescribeProducersResponse()
    named = partitions_once((topic.name, topic.partition_indexes) for topic in request.message.topics)
    for name, indexes in named.items():
        answer = m.DescribeProducersResponse.TopicResponse(name=name)
        response.topics.append(answer)
        for index in indexes:
            result = m.DescribeProducersResponse.PartitionResponse(partition_index=index)
            answer.partitions.append(result)
            partition = broker.partition(name, index)
            if partition is None:
                result.error_code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                continue
            try:
                if room.take(_PRODUCER_BYTES * partition.producer_count):
                    result.active_producers = _producers(partition)
                    await room.give_turn()
                else:
                    # Kafka's admin client takes it for a moved leader, and asks for this partition again.
                    result.error_code = ErrorCode.NOT_LEADER_OR_FOLLOWER
                    result.error_message = f"the response is full (limit {room.bytes_max} bytes): ask again"
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
