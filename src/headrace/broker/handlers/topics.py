"""APIs that create and delete topics, partitions and records."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import Executor
from typing import TYPE_CHECKING, Any

from headrace.broker.event_loop import Step
from headrace.broker.permissions import Handler, Operation, Permission, Resource
from headrace.broker.refusal import Refusal
from headrace.broker.storage.archive_access import ReadIsLate
from headrace.broker.storage.offline_partition import OfflinePartition
from headrace.broker.storage.partition import Partition
from headrace.broker.topics import configs
from headrace.broker.topics.new_topic import Growth, NewTopic
from headrace.broker.topics.topic import NO_TOPIC_ID, Topic, is_internal
from headrace.errors import StorageError
from headrace.key_order import FORCE_CONFIG, describe_moved_keys
from headrace.records import RecordError, RecordLimits, check_batch, iter_headers, open_batch
from headrace.wire import messages as m
from headrace.wire.api import Api
from headrace.wire.codes import ErrorCode

if TYPE_CHECKING:
    from headrace.broker.broker import Broker
    from headrace.broker.net.request import Request
    from headrace.wire.message import Message

__all__ = ["HANDLERS", "has_keyed_records"]

_CONFIGS_SINCE = 5
_ITEMS_PER_STEP = 50


async def create_topics(broker: Broker, request: Request) -> Any:
    """Create topics. If the broker refuses one topic, it still creates the others."""
    message = request.message
    counts = Counter(topic.name for topic in message.topics)
    new_topics = [_new_topic(topic) for topic in message.topics if counts[topic.name] == 1]
    results = await broker.catalog.create(new_topics, validate_only=message.validate_only)
    topics = []
    encoded_configs = _EncodedConfigs(broker) if request.version >= _CONFIGS_SINCE else None
    step = Step(broker.clock, _ITEMS_PER_STEP)
    for new_topic, result in zip(new_topics, results, strict=True):
        topics.append(_creation_result(new_topic.name, result, encoded_configs))
        if step.is_over():
            await broker.turns.take()
            step.restart()
    duplicate = Refusal(ErrorCode.INVALID_REQUEST, "the request names this topic more than once")
    topics += [_creation_result(name, duplicate, encoded_configs) for name in counts if counts[name] > 1]
    return m.CreateTopicsResponse(topics=topics)


def _new_topic(topic: Message) -> NewTopic:
    return NewTopic(
        topic.name,
        topic.num_partitions,
        topic.replication_factor,
        [(assignment.partition_index, assignment.broker_ids) for assignment in topic.assignments],
        {config.name: config.value for config in topic.configs},
    )


class _EncodedConfigs:
    """Encodes the configuration of topics for the response, once for all topics with the same overrides."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._encoded: dict[tuple[tuple[str, str], ...], list[Any]] = {}

    def encode(self, topic: Topic) -> list[Any]:
        overrides = tuple(sorted(topic.configs.items()))
        encoded = self._encoded.get(overrides)
        if encoded is None:
            encoded = self._encoded[overrides] = [
                m.CreateTopicsResponse.CreatableTopicConfigs(
                    name=entry.key.name, value=entry.value, config_source=entry.source
                )
                for entry in configs.describe_topic(topic.configs, self._broker.catalog.configs)
            ]
        return encoded


def _creation_result(name: str, result: Topic | Refusal, encoded_configs: _EncodedConfigs | None) -> Any:
    if isinstance(result, Refusal):
        return m.CreateTopicsResponse.CreatableTopicResult(
            name=name, error_code=result.error_code, error_message=result.text
        )
    response = m.CreateTopicsResponse.CreatableTopicResult(
        name=name,
        topic_id=result.id,
        error_message=None,
        num_partitions=result.partitions,
        replication_factor=1,
    )
    if encoded_configs is not None:
        response.configs = encoded_configs.encode(result)
    return response


async def create_partitions(broker: Broker, request: Request) -> Any:
    """Add partitions to topics.

    The broker cannot remove partitions from a topic, because committed offsets must stay valid. It adds partitions to a
    topic of keyed records only if the topic has ``headrace.partitions.force=true``. The reason is that new records of a
    key can go to another partition than the key's old records, and so lose their order (``headrace.key_order``).
    """
    message = request.message
    counts = Counter(topic.name for topic in message.topics)
    growths = [_growth(topic) for topic in message.topics if counts[topic.name] == 1]
    refused = {
        growth.name: refusal for growth in growths if (refusal := await _refusal_to_grow(broker, growth))
    }
    accepted = [growth for growth in growths if growth.name not in refused]
    results = await broker.catalog.grow(accepted, validate_only=message.validate_only)
    topics = [_growth_result(growth.name, result) for growth, result in zip(accepted, results, strict=True)]
    topics += [_growth_result(name, refusal) for name, refusal in refused.items()]
    duplicate = Refusal(ErrorCode.INVALID_REQUEST, "the request names this topic more than once")
    topics += [_growth_result(name, duplicate) for name in counts if counts[name] > 1]
    return m.CreatePartitionsResponse(results=topics)


async def _refusal_to_grow(broker: Broker, growth: Growth) -> Refusal | None:
    topic = broker.catalog.topic(growth.name)
    if topic is None or growth.count <= topic.partitions or topic.configs.get(FORCE_CONFIG) == "true":
        return None
    if not await has_keyed_records(
        broker.partitions.of_topic(topic.name), broker.limits.records, broker.batch_executor
    ):
        return None
    return Refusal(
        ErrorCode.POLICY_VIOLATION,
        f"{describe_moved_keys(topic.name, topic.partitions, growth.count)};"
        f" to add partitions anyway, set {FORCE_CONFIG}=true on the topic and retry",
    )


def _growth(topic: Message) -> Growth:
    assignments = topic.assignments
    return Growth(
        topic.name,
        topic.count,
        None if assignments is None else [assignment.broker_ids for assignment in assignments],
    )


def _growth_result(name: str, result: Topic | Refusal) -> Any:
    response = m.CreatePartitionsResponse.CreatePartitionsTopicResult(name=name)
    if isinstance(result, Refusal):
        response.error_code = result.error_code
        response.error_message = result.text
    return response


_IDS_SINCE = 6
_ARCHIVE_WAIT_S = 1.0

Key = tuple[str | None, bytes]


async def delete_topics(broker: Broker, request: Request) -> Any:
    """Delete topics, and the offsets that groups committed for them. From version 6 on, a request can use topic ids."""
    message = request.message
    keys: list[Key]
    if request.version < _IDS_SINCE:
        keys = [(name, NO_TOPIC_ID) for name in message.topic_names]
    else:
        keys = [(topic.name, topic.topic_id) for topic in message.topics]
    topics, responses = _resolve(broker, keys)

    async def forget(topic: Topic) -> None:
        broker.stats.forget(topic.name)
        await broker.groups.forget_topic(topic.name)

    results = await broker.catalog.delete([topic.id for topic in topics], after_removal=forget)
    await broker.archiver.remove_deleted(_ARCHIVE_WAIT_S)
    responses += [
        _deletion_result(topic.name, topic.id, result if isinstance(result, Refusal) else None)
        for topic, result in zip(topics, results, strict=True)
    ]
    return m.DeleteTopicsResponse(responses=responses)


def _resolve(broker: Broker, keys: list[Key]) -> tuple[list[Topic], list[Any]]:
    """Return the topics to delete, and the responses for the names and ids that the broker refuses."""
    counts = Counter(keys)
    responses = []
    topics: list[Topic] = []
    for key in counts:
        try:
            if counts[key] > 1 and key != (None, NO_TOPIC_ID):
                raise Refusal(ErrorCode.INVALID_REQUEST, "the request names this topic more than once")
            topics.append(_find_topic(broker, *key))
        except Refusal as refusal:
            responses.append(_deletion_result(*key, refusal))
    id_counts = Counter(topic.id for topic in topics)
    name_and_id = Refusal(ErrorCode.INVALID_REQUEST, "the request names this topic by its name and by its id")
    duplicates = {topic.id: topic.name for topic in topics if id_counts[topic.id] > 1}
    responses += [_deletion_result(name, topic_id, name_and_id) for topic_id, name in duplicates.items()]
    return [topic for topic in topics if topic.id not in duplicates], responses


def _find_topic(broker: Broker, name: str | None, topic_id: bytes) -> Topic:
    if name is None:
        if topic_id == NO_TOPIC_ID:
            raise Refusal(
                ErrorCode.INVALID_REQUEST, "the request has neither a name nor an id for this topic"
            )
        topic = broker.catalog.topic_by_id(topic_id)
        if topic is None:
            raise Refusal(ErrorCode.UNKNOWN_TOPIC_ID, "no topic has this id")
        return topic
    if topic_id != NO_TOPIC_ID:
        raise Refusal(
            ErrorCode.INVALID_REQUEST, "the request has a name and an id for this topic: send only one"
        )
    topic = broker.catalog.topic(name)
    if topic is None:
        raise Refusal(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "no topic has this name")
    return topic


def _deletion_result(name: str | None, topic_id: bytes, refusal: Refusal | None) -> Any:
    result = m.DeleteTopicsResponse.DeletableTopicResult(name=name, topic_id=topic_id)
    if refusal is not None:
        result.error_code, result.error_message = refusal.error_code, refusal.text
    return result


_TO_THE_END = -1


async def delete_records(broker: Broker, request: Request) -> Any:
    """Delete all records before an offset, and respond when the new start offset is on disk."""
    response = m.DeleteRecordsResponse()
    for topic in request.message.topics:
        topic_result = m.DeleteRecordsResponse.DeleteRecordsTopicResult(name=topic.name)
        response.topics.append(topic_result)
        for part in topic.partitions:
            result = m.DeleteRecordsResponse.DeleteRecordsPartitionResult(
                partition_index=part.partition_index, low_watermark=-1
            )
            topic_result.partitions.append(result)
            try:
                result.low_watermark = await _delete(broker, topic.name, part.partition_index, part.offset)
            except Refusal as refusal:
                result.error_code = refusal.error_code
    return response


async def _delete(broker: Broker, name: str, index: int, offset: int) -> int:
    topic = broker.catalog.topic(name)
    partition = broker.partition(name, index)
    if topic is None or partition is None:
        raise Refusal(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    if is_internal(name):
        raise Refusal(ErrorCode.INVALID_TOPIC_EXCEPTION, f"{name} is an internal topic of Kafka")
    if not broker.catalog.log_config(topic).has_delete_policy:
        raise Refusal(ErrorCode.POLICY_VIOLATION, f"the cleanup.policy of {name} does not include delete")
    try:
        before = partition.high_watermark if offset == _TO_THE_END else offset
        if not 0 <= before <= partition.high_watermark:
            raise Refusal(ErrorCode.OFFSET_OUT_OF_RANGE)
        return await partition.delete_before(before)
    except StorageError as error:
        raise Refusal(ErrorCode.KAFKA_STORAGE_ERROR, error.message) from error


_SAMPLES = 8
_READ_BYTES = 64 * 1024
_SAMPLE_WAIT_S = 5.0
"""Limit for all archive reads of one call together."""
_PARTITIONS_MAX = 100
_RECORDS_MAX = 20_000


async def has_keyed_records(
    partitions: Iterable[Partition], limits: RecordLimits, executor: Executor
) -> bool:
    """Return whether a sample of the topic's records contains a record with a key.

    The sample is a few batches of each partition, evenly spaced from its start to its end. That suffices because most
    producers set a key on every record or on none. If only a few records have keys, the sample can miss them. The
    sample covers at most 100 partitions: those with the most records. The executor decompresses the batches, because a
    small batch can decompress to many bytes.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + _SAMPLE_WAIT_S
    served = [partition for partition in partitions if not isinstance(partition, OfflinePartition)]
    served.sort(key=lambda partition: partition.end_offset - partition.start_offset, reverse=True)
    for partition in served[:_PARTITIONS_MAX]:
        for offset in _sample_offsets(partition):
            left_s = deadline - loop.time()
            if left_s <= 0 and offset < partition.local_start_offset:
                continue
            data = await _read(partition, offset, left_s)
            if not data:
                continue
            if await loop.run_in_executor(executor, _has_key, data, limits):
                return True
    return False


def _sample_offsets(partition: Partition) -> Iterator[int]:
    """Yield evenly spaced offsets, from the first record to the last."""
    start, end = partition.start_offset, partition.high_watermark
    previous = None
    for step in range(_SAMPLES + 1):
        offset = start + (end - 1 - start) * step // _SAMPLES
        if start <= offset < end and offset != previous:
            previous = offset
            yield offset


async def _read(partition: Partition, offset: int, wait_s: float) -> memoryview:
    """Read a sample. Returns no bytes if the read fails or takes too long."""
    try:
        records = await partition.read(max(offset, partition.start_offset), _READ_BYTES, max(wait_s, 0.0))
    except (StorageError, OSError, ReadIsLate):
        return memoryview(b"")
    return records.data


def _has_key(data: memoryview, limits: RecordLimits) -> bool:
    try:
        for position, header in iter_headers(data):
            if header.is_control:
                continue
            if _batch_has_key(data[position : position + header.size], header.count, limits):
                return True
    except RecordError:
        return False
    return False


def _batch_has_key(batch: memoryview, count: int, limits: RecordLimits) -> bool:
    if count > _RECORDS_MAX:
        return not check_batch(batch, limits).has_null_key
    return any(record.key is not None for record in open_batch(batch, limits).records)


HANDLERS = {
    Api.CREATE_TOPICS: Handler(create_topics, (Permission(Operation.CREATE, Resource.TOPIC),)),
    Api.CREATE_PARTITIONS: Handler(create_partitions, (Permission(Operation.ALTER, Resource.TOPIC),)),
    Api.DELETE_TOPICS: Handler(delete_topics, (Permission(Operation.DELETE, Resource.TOPIC),)),
    Api.DELETE_RECORDS: Handler(delete_records, (Permission(Operation.DELETE, Resource.TOPIC),)),
}
