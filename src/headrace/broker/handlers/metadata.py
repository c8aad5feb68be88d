"""Metadata: where the broker is and which topics it has. Clients ask this before anything else, and then
all the time.

Topics that are asked for by name and are not there are created on the way, if broker and client both allow
it. What is sent for a topic is kept until the topic changes, because a client of thousands of topics asks
for all of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import msgspec

from headrace.broker.catalog import Catalog
from headrace.broker.epochs import leader_epochs
from headrace.broker.names import RESERVED, is_internal, name_fault
from headrace.broker.new_topic import NewTopic
from headrace.broker.operations import CLUSTER_OPERATIONS, TOPIC_OPERATIONS
from headrace.broker.refusal import Refusal
from headrace.broker.topic import NO_TOPIC_ID, Topic
from headrace.broker.weights import elements_max_of
from headrace.wire import messages as m
from headrace.wire.api import Api
from headrace.wire.codes import ErrorCode

if TYPE_CHECKING:
    from headrace.broker.broker import Broker
    from headrace.broker.request import Request
    from headrace.wire.message import Message

__all__ = ["handle"]

_NULL_IS_ALL_SINCE = 1
_IDS_SINCE = 12
_OPERATIONS_SINCE = 8


async def handle(broker: Broker, request: Request) -> Any:
    message = request.message
    wanted = message.topics
    if wanted is None or (not wanted and request.version < _NULL_IS_ALL_SINCE):
        topics = _all_topics(broker)
    else:
        if request.version < _IDS_SINCE and any(t.name is None or t.topic_id != NO_TOPIC_ID for t in wanted):
            return _ids_too_early(wanted)
        topics = await _asked_for(broker, message)
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


def _ids_too_early(wanted: list[Any]) -> Any:
    """Versions 10 and 11 have the field for ids, but Kafka never served them by id; nor may we."""
    return m.MetadataResponse(
        topics=[
            m.MetadataResponse.MetadataResponseTopic(
                error_code=ErrorCode.INVALID_REQUEST, name=topic.name or "", topic_id=topic.topic_id
            )
            for topic in wanted
        ]
    )


async def _asked_for(broker: Broker, message: Message) -> list[Any]:
    """By id if any id is given, as in Kafka; else by name. Each once, however often it is asked for."""
    ids = dict.fromkeys(t.topic_id for t in message.topics if t.topic_id != NO_TOPIC_ID)
    if ids:
        return [_of_id(broker, topic_id) for topic_id in ids]
    names = dict.fromkeys(t.name for t in message.topics)
    may_create = message.allow_auto_topic_creation and broker.catalog.configs.auto_create_topics
    refusals = await _create_missing(broker, [n for n in names if n is not None]) if may_create else {}
    return [_of_name(broker, name, refusals) for name in names]


async def _create_missing(broker: Broker, names: list[str]) -> dict[str, Refusal]:
    """Create the topics that are not there; says why for those that could not be."""
    wanted = [
        NewTopic(name)
        for name in names
        if broker.catalog.topic(name) is None and not is_internal(name) and name != RESERVED
    ]
    if not wanted:
        return {}
    # No more at once than CreateTopics may ask for. Clients ask again for topics that they are told are unknown.
    del wanted[elements_max_of(Api.CREATE_TOPICS, broker.limits.request_elements_max) :]
    results = await broker.catalog.create(wanted)
    return {
        new.name: result for new, result in zip(wanted, results, strict=True) if isinstance(result, Refusal)
    }


def _of_name(broker: Broker, name: str | None, refusals: dict[str, Refusal]) -> Any:
    if name is None:
        return _failed(ErrorCode.INVALID_REQUEST, name="")
    topic = broker.catalog.topic(name)
    if topic is not None:
        return _of_topic(broker, topic)
    refusal = refusals.get(name)
    if refusal is not None and refusal.error_code is not ErrorCode.TOPIC_ALREADY_EXISTS:
        return _failed(refusal.error_code, name=name)
    if name_fault(name) is not None:
        return _failed(ErrorCode.INVALID_TOPIC_EXCEPTION, name=name)
    return _failed(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, name=name)


def _of_id(broker: Broker, topic_id: bytes) -> Any:
    topic = broker.catalog.topic_by_id(topic_id)
    if topic is None:
        return _failed(ErrorCode.UNKNOWN_TOPIC_ID, name=None, topic_id=topic_id)
    return _of_topic(broker, topic)


def _failed(error_code: ErrorCode, *, name: str | None, topic_id: bytes = NO_TOPIC_ID) -> Any:
    return m.MetadataResponse.MetadataResponseTopic(
        error_code=error_code,
        name=name,
        topic_id=topic_id,
        is_internal=name is not None and is_internal(name),
    )


class _Kept:
    """What was last sent for each topic, by its id, with the topic that it was made from. Nobody may change it.

    A partition's epoch, and whether its files can be used, are settled when it is opened, and a topic of which a
    partition is opened is a new ``Topic``: so the topic alone says whether what was kept still holds.
    """

    def __init__(self) -> None:
        self.of_topic: dict[bytes, tuple[Topic, Any]] = {}
        self.all_topics: list[Any] = []
        self.all_at_version = -1


_kept_for: WeakKeyDictionary[Catalog, _Kept] = WeakKeyDictionary()


def _all_topics(broker: Broker) -> list[Any]:
    catalog = broker.catalog
    kept = _kept_for.setdefault(catalog, _Kept())
    if kept.all_at_version != catalog.version:
        topics = catalog.topics()
        kept.all_topics = [_of_topic(broker, topic) for topic in topics]
        kept.all_at_version = catalog.version
    return kept.all_topics


def _of_topic(broker: Broker, topic: Topic) -> Any:
    kept = _kept_for.setdefault(broker.catalog, _Kept()).of_topic
    last = kept.get(topic.id)
    if last is not None and last[0] is topic:
        return last[1]
    message = _make(broker.settings.node_id, topic, leader_epochs(broker, topic))
    if len(kept) > 2 * len(broker.catalog.topics()):
        # Let go of topics that are gone, so that what is kept stays in proportion to what there is.
        for topic_id in [known for known in kept if broker.catalog.topic_by_id(known) is None]:
            del kept[topic_id]
    kept[topic.id] = (topic, message)
    return message


def _make(node_id: int, topic: Topic, epochs: tuple[int, ...]) -> Any:
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
