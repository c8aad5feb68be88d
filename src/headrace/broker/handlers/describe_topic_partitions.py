"""DescribeTopicPartitions: topics in the order of their names, a page at a time.

A page has at most so many partitions; a cursor says where the next one begins, in the middle of a topic if
need be.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headrace.broker.epochs import leader_epochs
from headrace.broker.names import is_internal, name_fault
from headrace.broker.operations import TOPIC_OPERATIONS
from headrace.broker.topic import Topic
from headrace.wire import messages as m
from headrace.wire.codes import ErrorCode

if TYPE_CHECKING:
    from headrace.broker.broker import Broker
    from headrace.broker.request import Request

__all__ = ["PAGE_PARTITIONS_MAX", "handle"]

PAGE_PARTITIONS_MAX = 2_000


async def handle(broker: Broker, request: Request) -> Any:
    message = request.message
    cursor = message.cursor
    every = not message.topics
    names = {topic.name for topic in (broker.catalog.topics() if every else message.topics)}
    if cursor is not None and (cursor.partition_index < 0 or not (every or cursor.topic_name in names)):
        return m.DescribeTopicPartitionsResponse(
            topics=[_failed(ErrorCode.INVALID_REQUEST, topic.name) for topic in message.topics]
        )
    room = max(1, min(message.response_partition_limit, PAGE_PARTITIONS_MAX))
    response = m.DescribeTopicPartitionsResponse()
    for name in sorted(names):
        if cursor is not None and name < cursor.topic_name:
            continue
        if room == 0:
            response.next_cursor = m.DescribeTopicPartitionsResponse.Cursor(topic_name=name)
            break
        topic = broker.catalog.topic(name)
        if topic is None:
            response.topics.append(_unknown(name))
            continue
        first = cursor.partition_index if cursor is not None and cursor.topic_name == name else 0
        last = min(topic.partitions, first + room)
        response.topics.append(_described(broker, topic, first, last))
        room -= max(0, last - first)
        if last < topic.partitions:
            response.next_cursor = m.DescribeTopicPartitionsResponse.Cursor(
                topic_name=name, partition_index=last
            )
            break
    return response


def _described(broker: Broker, topic: Topic, first: int, last: int) -> Any:
    nodes = [broker.settings.node_id]
    partition = m.DescribeTopicPartitionsResponse.DescribeTopicPartitionsResponsePartition
    epochs = leader_epochs(broker, topic)
    return m.DescribeTopicPartitionsResponse.DescribeTopicPartitionsResponseTopic(
        name=topic.name,
        topic_id=topic.id,
        is_internal=is_internal(topic.name),
        partitions=[
            partition(
                error_code=ErrorCode.NONE if epochs[index] >= 0 else ErrorCode.LEADER_NOT_AVAILABLE,
                partition_index=index,
                leader_id=nodes[0] if epochs[index] >= 0 else -1,
                leader_epoch=epochs[index],
                replica_nodes=nodes,
                isr_nodes=nodes if epochs[index] >= 0 else [],
                eligible_leader_replicas=[],
                last_known_elr=[],
                offline_replicas=[] if epochs[index] >= 0 else nodes,
            )
            for index in range(first, last)
        ],
        topic_authorized_operations=TOPIC_OPERATIONS,
    )


def _unknown(name: str) -> Any:
    answer = _failed(
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if name_fault(name) is None
        else ErrorCode.INVALID_TOPIC_EXCEPTION,
        name,
    )
    answer.topic_authorized_operations = TOPIC_OPERATIONS
    return answer


def _failed(error_code: ErrorCode, name: str) -> Any:
    return m.DescribeTopicPartitionsResponse.DescribeTopicPartitionsResponseTopic(
        error_code=error_code, name=name, is_internal=is_internal(name)
    )
