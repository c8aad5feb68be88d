"""APIs that describe topics and their partitions to clients."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import msgspec

from headrace.broker.permissions import (
    CLUSTER_OPERATIONS,
    TOPIC_OPERATIONS,
    Handler,
    Operation,
    Permission,
    Resource,
)
from headrace.broker.refusal import Refusal
from headrace.broker.storage.leader_epochs import leader_epochs
from headrace.broker.topics.catalog import Catalog
from headrace.broker.topics.new_topic import NewTopic
from headrace.broker.topics.topic import NO_TOPIC_ID, RESERVED, Topic, is_internal, name_fault
from headrace.wire import messages as m
from headrace.wire.api import Api
from headrace.wire.codes import ErrorCode

if TYPE_CHECKING:
    from headrace.broker.broker import Broker
    from headrace.broker.net.request import Request
    from headrace.wire.message import Message

__all__ = ["HANDLERS", "PAGE_PARTITIONS_MAX"]

_NULL_IS_ALL_SINCE = 1
_IDS_SINCE = 12
_OPERATIONS_SINCE = 8
# Clients of a few topics repeat their requests regularly, and must not wait for long requests of other clients.
_ITEMS_WITHOUT_TURN_MAX = 50


async def metadata(broker: Broker, request: Request) -> Any:
    """Return the broker's address, and topics with their partitions. Clients repeat this request regularly.

    If both the broker and the client allow it, the broker creates the requested topics that do not exist. The broker
    caches the response for each topic until the topic changes, because a client can request thousands of topics at
    once.
    """
    message = request.message
    requested = message.topics
    if requested is None or (not requested and request.version < _NULL_IS_ALL_SINCE):
        topics = _all_topics(broker)
    else:
        if request.version < _IDS_SINCE and any(
            topic.name is None or topic.topic_id != NO_TOPIC_ID for topic in requested
        ):
            return _ids_unsupported(requested)
        topics = await _requested_topics(broker, message)
    if sum(len(topic.partitions) + 1 for topic in topics) > _ITEMS_WITHOUT_TURN_MAX:
        await broker.turns.take()
    if request.version >= _OPERATIONS_SINCE and message.include_topic_authorized_operations:
        topics = [msgspec.structs.replace(t, topic_authorized_operations=TOPIC_OPERATIONS) for t in topics]
    host, port = broker.settings.advertised
    response = m.MetadataResponse(
        brokers=[
            m.MetadataResponse.MetadataResponseBroker(node_id=broker.settings.node_id, host=host, port=port)
        ],
        cluster_id=broker.cluster_id,
        controller_id=broker.settings.node_id,
        topics=topics,
    )
    if message.include_cluster_authorized_operations:
        response.cluster_authorized_operations = CLUSTER_OPERATIONS
    return response


def _ids_unsupported(requested: list[Any]) -> Any:
    """Return an error for each topic. Versions 10 and 11 have a field for ids, but Kafka does not support it."""
    return m.MetadataResponse(
        topics=[
            m.MetadataResponse.MetadataResponseTopic(
                error_code=ErrorCode.INVALID_REQUEST, name=topic.name or "", topic_id=topic.topic_id
            )
            for topic in requested
        ]
    )


async def _requested_topics(broker: Broker, message: Message) -> list[Any]:
    """Return each requested topic once. As in Kafka, if the request has any id, names are ignored."""
    ids = dict.fromkeys(t.topic_id for t in message.topics if t.topic_id != NO_TOPIC_ID)
    if ids:
        await _take_turn_for_many(broker, ids)
        return [_response_for_id(broker, topic_id) for topic_id in ids]
    names = dict.fromkeys(t.name for t in message.topics)
    may_create = message.allow_auto_topic_creation and broker.catalog.configs.auto_create_topics
    refusals = await _create_missing(broker, [n for n in names if n is not None]) if may_create else {}
    await _take_turn_for_many(broker, names)
    return [_response_for_name(broker, name, refusals) for name in names]


async def _take_turn_for_many(broker: Broker, requested: Collection[object]) -> None:
    """Take a turn before the responses for many names or ids are built."""
    if len(requested) > _ITEMS_WITHOUT_TURN_MAX:
        await broker.turns.take()


async def _create_missing(broker: Broker, names: list[str]) -> dict[str, Refusal]:
    """Create the topics that do not exist. Returns the reason for each topic that the broker refuses to create."""
    missing = [
        NewTopic(name)
        for name in names
        if broker.catalog.topic(name) is None and not is_internal(name) and name != RESERVED
    ]
    if not missing:
        return {}
    # Create at most as many topics as one CreateTopics request may contain. The response reports the others as unknown,
    # and clients retry unknown topics.
    del missing[broker.limits.elements_max[Api.CREATE_TOPICS] :]
    results = await broker.catalog.create(missing)
    return {
        new_topic.name: result
        for new_topic, result in zip(missing, results, strict=True)
        if isinstance(result, Refusal)
    }


def _response_for_name(broker: Broker, name: str | None, refusals: dict[str, Refusal]) -> Any:
    if name is None:
        return _error_response(ErrorCode.INVALID_REQUEST, name="")
    topic = broker.catalog.topic(name)
    if topic is not None:
        return _response_for_topic(broker, topic)
    refusal = refusals.get(name)
    if refusal is not None and refusal.error_code is not ErrorCode.TOPIC_ALREADY_EXISTS:
        return _error_response(refusal.error_code, name=name)
    if name_fault(name) is not None:
        return _error_response(ErrorCode.INVALID_TOPIC_EXCEPTION, name=name)
    return _error_response(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, name=name)


def _response_for_id(broker: Broker, topic_id: bytes) -> Any:
    topic = broker.catalog.topic_by_id(topic_id)
    if topic is None:
        return _error_response(ErrorCode.UNKNOWN_TOPIC_ID, name=None, topic_id=topic_id)
    return _response_for_topic(broker, topic)


def _error_response(error_code: ErrorCode, *, name: str | None, topic_id: bytes = NO_TOPIC_ID) -> Any:
    return m.MetadataResponse.MetadataResponseTopic(
        error_code=error_code,
        name=name,
        topic_id=topic_id,
        is_internal=name is not None and is_internal(name),
    )


class _TopicCache:
    """The cached response for each topic, by topic id, with the ``Topic`` object from which it was built.

    When a partition opens, its leader epoch and its offline state can change, and the catalog then creates a new
    ``Topic``. So an entry is valid while the catalog has the same ``Topic`` object. Callers must not modify a cached
    response.
    """

    def __init__(self) -> None:
        self.responses: dict[bytes, tuple[Topic, Any]] = {}
        self.all_topics: list[Any] = []
        self.all_topics_version = -1


_caches: WeakKeyDictionary[Catalog, _TopicCache] = WeakKeyDictionary()


def _all_topics(broker: Broker) -> list[Any]:
    catalog = broker.catalog
    cache = _caches.setdefault(catalog, _TopicCache())
    if cache.all_topics_version != catalog.version:
        topics = catalog.topics()
        cache.all_topics = [_response_for_topic(broker, topic) for topic in topics]
        cache.all_topics_version = catalog.version
    return cache.all_topics


def _response_for_topic(broker: Broker, topic: Topic) -> Any:
    cache = _caches.setdefault(broker.catalog, _TopicCache()).responses
    cached = cache.get(topic.id)
    if cached is not None and cached[0] is topic:
        return cached[1]
    message = _new_response(broker.settings.node_id, topic, leader_epochs(broker, topic))
    if len(cache) > 2 * len(broker.catalog.topics()):
        # Drop deleted topics, or the cache would grow with every topic that ever existed.
        for topic_id in [cached_id for cached_id in cache if broker.catalog.topic_by_id(cached_id) is None]:
            del cache[topic_id]
    cache[topic.id] = (topic, message)
    return message


def _new_response(node_id: int, topic: Topic, epochs: tuple[int, ...]) -> Any:
    nodes = [node_id]
    partition = m.MetadataResponse.MetadataResponsePartition
    return m.MetadataResponse.MetadataResponseTopic(
        name=topic.name,
        topic_id=topic.id,
        is_internal=is_internal(topic.name),
        partitions=[
            partition(
                partition_index=index,
                leader_id=node_id,
                leader_epoch=epoch,
                replica_nodes=nodes,
                isr_nodes=nodes,
            )
            if epoch >= 0
            else partition(
                error_code=ErrorCode.LEADER_NOT_AVAILABLE,
                partition_index=index,
                leader_id=-1,
                replica_nodes=nodes,
                offline_replicas=nodes,
            )
            for index, epoch in enumerate(epochs)
        ],
    )


PAGE_PARTITIONS_MAX = 2_000


async def describe_topic_partitions(broker: Broker, request: Request) -> Any:
    """Return topics and their partitions in pages, sorted by topic name.

    A page has at most ``PAGE_PARTITIONS_MAX`` partitions. The cursor in the response is the topic and partition at
    which the next page begins.
    """
    message = request.message
    cursor = message.cursor
    await broker.turns.take()
    all_requested = not message.topics
    names = {topic.name for topic in (broker.catalog.topics() if all_requested else message.topics)}
    if cursor is not None and (
        cursor.partition_index < 0 or not (all_requested or cursor.topic_name in names)
    ):
        return m.DescribeTopicPartitionsResponse(
            topics=[_failed_topic(ErrorCode.INVALID_REQUEST, topic.name) for topic in message.topics]
        )
    partitions_left = max(1, min(message.response_partition_limit, PAGE_PARTITIONS_MAX))
    response = m.DescribeTopicPartitionsResponse()
    for name in sorted(names):
        if cursor is not None and name < cursor.topic_name:
            continue
        if partitions_left == 0:
            response.next_cursor = m.DescribeTopicPartitionsResponse.Cursor(topic_name=name)
            break
        topic = broker.catalog.topic(name)
        if topic is None:
            response.topics.append(_unknown_topic(name))
            continue
        first = cursor.partition_index if cursor is not None and cursor.topic_name == name else 0
        last = min(topic.partitions, first + partitions_left)
        response.topics.append(_described_topic(broker, topic, first, last))
        partitions_left -= max(0, last - first)
        if last < topic.partitions:
            response.next_cursor = m.DescribeTopicPartitionsResponse.Cursor(
                topic_name=name, partition_index=last
            )
            break
    return response


def _described_topic(broker: Broker, topic: Topic, first: int, last: int) -> Any:
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


def _unknown_topic(name: str) -> Any:
    topic = _failed_topic(
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if name_fault(name) is None
        else ErrorCode.INVALID_TOPIC_EXCEPTION,
        name,
    )
    topic.topic_authorized_operations = TOPIC_OPERATIONS
    return topic


def _failed_topic(error_code: ErrorCode, name: str) -> Any:
    return m.DescribeTopicPartitionsResponse.DescribeTopicPartitionsResponseTopic(
        error_code=error_code, name=name, is_internal=is_internal(name)
    )


HANDLERS = {
    Api.METADATA: Handler(
        metadata,
        (
            Permission(Operation.DESCRIBE, Resource.TOPIC),
            Permission(Operation.CREATE, Resource.TOPIC),
        ),
    ),
    Api.DESCRIBE_TOPIC_PARTITIONS: Handler(
        describe_topic_partitions, (Permission(Operation.DESCRIBE, Resource.TOPIC),)
    ),
}
