"""Amplification cases of the log: requests about topics, records, fetches, timestamps and configurations."""

from __future__ import annotations

import time
from typing import Any

from faults.log.amplifier_steps import (
    PARTITIONS,
    WIDE,
    create,
    new_names,
    produce,
    write_by_producers,
    zstd_bomb,
)
from faults.log.attacker import Attacker
from faults.protocol.batches import build_batch
from faults.protocol.strict_batch import ZSTD, batch_with_header, compressed, record
from headrace.wire import Api
from headrace.wire import messages as m

__all__ = [
    "all_texts_of_the_broker",
    "configs_for_many_clients",
    "fetches_that_wait",
    "lists_of_many_items",
    "many_partitions",
    "offsets_for_many_clients",
    "one_resource_by_many_keys",
    "partitions_for_many_clients",
    "producers_of_every_partition",
    "records_without_keys",
    "sessions_of_known_topics",
    "sessions_of_unknown_topics",
    "small_batches_before_large_ones",
    "times_in_bombs",
    "topics_made_by_naming_them",
    "topics_of_bombs_that_grow",
    "topics_that_are_not_made",
    "wide_topics_that_are_deleted",
]


def producers_of_every_partition(attacker: Attacker) -> None:
    for index in range(1, 30):
        write_by_producers(attacker, index, 3_000)


def records_without_keys(attacker: Attacker) -> None:
    """The response has a separate error for each record of each batch."""
    create(attacker, "compacted", 1, **{"cleanup.policy": "compact"})
    batch = build_batch([b""] * 2_000, int(time.time() * 1000))
    produce(attacker, "compacted", [(0, batch)] * 50)


def _fetch(topics: dict[str, list[tuple[int, int]]], **fields: Any) -> Any:
    request = m.FetchRequest
    return request(
        **{"max_wait_ms": 0, "min_bytes": 0, "max_bytes": 2**31 - 1, "session_epoch": 0, **fields},
        topics=[
            request.FetchTopic(
                topic=name,
                partitions=[
                    request.FetchPartition(
                        partition=index, fetch_offset=offset, partition_max_bytes=2**31 - 1
                    )
                    for index, offset in partitions
                ],
            )
            for name, partitions in topics.items()
        ],
    )


def sessions_of_unknown_topics(attacker: Attacker) -> None:
    for name in new_names(attacker, 35):
        attacker.call(Api.FETCH, _fetch({name: [(index, 2**40 + index) for index in range(11_000)]}), 12)


def sessions_of_known_topics(attacker: Attacker) -> None:
    for _ in range(300):
        attacker.call(Api.FETCH, _fetch({WIDE: [(index, 10**6) for index in range(40, PARTITIONS)]}), 12)


def fetches_that_wait(attacker: Attacker) -> None:
    message = _fetch(
        {WIDE: [(index, 0) for index in range(40, PARTITIONS)]},
        max_wait_ms=200_000,
        min_bytes=1,
        session_epoch=-1,
    )
    for _ in range(200):
        attacker.send(Api.FETCH, message, 12, connection=attacker.connect())
    time.sleep(0.5)


def small_batches_before_large_ones(attacker: Attacker) -> None:
    """Fetch with a limit that admits a small batch and only a part of the large batch after it."""
    create(attacker, "uneven", 40)
    now_ms = int(time.time() * 1000)
    large = build_batch([bytes(1_000_000)], now_ms)
    for index in range(40):
        produce(attacker, "uneven", [(index, build_batch([b""], now_ms))])
        produce(attacker, "uneven", [(index, large)])
    sent = attacker.sent_bytes
    message = _fetch({"uneven": [(index, 0) for index in range(40)]}, session_epoch=-1)
    for topic in message.topics:
        for partition in topic.partitions:
            partition.partition_max_bytes = 999_000
    for _ in range(20):
        attacker.call(Api.FETCH, message, 12)
    # The fetches are the attack; the records that they read do not count as sent.
    attacker.sent_bytes -= sent


def times_in_bombs(attacker: Attacker) -> None:
    """Search for a timestamp whose record is the last of a batch that decompresses to many records."""
    create(attacker, "bombs", 20)
    bomb = zstd_bomb(500_000)
    for index in range(20):
        produce(attacker, "bombs", [(index, bomb)])
    request = m.ListOffsetsRequest
    for timestamp in (int(time.time() * 1000) - 3_600_000, -3):
        parts = [
            request.ListOffsetsPartition(partition_index=index, timestamp=timestamp) for index in range(20)
        ]
        attacker.call(
            Api.LIST_OFFSETS, request(topics=[request.ListOffsetsTopic(name="bombs", partitions=parts)]), 8
        )


def topics_made_by_naming_them(attacker: Attacker) -> None:
    request = m.MetadataRequest
    names = [request.MetadataRequestTopic(name=name) for name in new_names(attacker, 3_000)]
    attacker.call(Api.METADATA, request(topics=names, allow_auto_topic_creation=True), 9)
    attacker.call(Api.METADATA, request(topics=None, include_topic_authorized_operations=True), 9)


def many_partitions(attacker: Attacker) -> None:
    for name in new_names(attacker, 5):
        create(attacker, name, 1_000)


def wide_topics_that_are_deleted(attacker: Attacker) -> None:
    request = m.DeleteTopicsRequest
    for name in new_names(attacker, 2):
        create(attacker, name, 1_000)
        state = request.DeleteTopicState(name=name)
        attacker.call(Api.DELETE_TOPICS, request(topics=[state], timeout_ms=60_000))


def topics_of_bombs_that_grow(attacker: Attacker) -> None:
    """Before the broker adds a partition, it checks whether records have keys, and must read batches that decompress to
    many records.
    """
    (name,) = new_names(attacker, 1)
    create(attacker, name, 5)
    plain = b"".join(record(index, bytes(1_000), key=None) for index in range(20_000))
    bomb = batch_with_header(compressed(ZSTD, plain), 20_000, int(time.time() * 1000), codec=ZSTD)
    for index in range(5):
        produce(attacker, name, [(index, bomb)])
    request = m.CreatePartitionsRequest
    topic = request.CreatePartitionsTopic(name=name, count=6)
    attacker.call(Api.CREATE_PARTITIONS, request(topics=[topic], timeout_ms=60_000))


def topics_that_are_not_made(attacker: Attacker) -> None:
    request = m.CreateTopicsRequest
    topics = [
        request.CreatableTopic(name=name, num_partitions=1, replication_factor=1)
        for name in new_names(attacker, 1_900)
    ]
    attacker.call(Api.CREATE_TOPICS, request(topics=topics, validate_only=True, timeout_ms=1_000))


def one_resource_by_many_keys(attacker: Attacker) -> None:
    request = m.DescribeConfigsRequest
    keys = ("headrace.tombstones.removed.below", "retention.ms")
    resources = [
        request.DescribeConfigsResource(
            resource_type=2, resource_name=WIDE, configuration_keys=[*keys, f"none-{number}"]
        )
        for number in range(1_400)
    ]
    attacker.call(Api.DESCRIBE_CONFIGS, request(resources=resources, include_synonyms=True))


def configs_for_many_clients(attacker: Attacker) -> None:
    request = m.DescribeConfigsRequest
    resources = [request.DescribeConfigsResource(resource_type=2, resource_name=WIDE)]
    resources += [
        request.DescribeConfigsResource(resource_type=2, resource_name=name)
        for name in new_names(attacker, 2_000)
    ]
    attacker.call_from_many(Api.DESCRIBE_CONFIGS, request(resources=resources), 4, connections=60)


def offsets_for_many_clients(attacker: Attacker) -> None:
    request = m.ListOffsetsRequest
    parts = [request.ListOffsetsPartition(partition_index=index, timestamp=-1) for index in range(1_200)]
    topics = [request.ListOffsetsTopic(name=WIDE, partitions=parts)]
    attacker.call_from_many(Api.LIST_OFFSETS, request(topics=topics), 8, connections=200)


def partitions_for_many_clients(attacker: Attacker) -> None:
    request = m.DescribeTopicPartitionsRequest
    message = request(topics=[request.TopicRequest(name=WIDE)], response_partition_limit=2_000)
    attacker.call_from_many(Api.DESCRIBE_TOPIC_PARTITIONS, message, 0, connections=200)


def all_texts_of_the_broker(attacker: Attacker) -> None:
    request = m.DescribeConfigsRequest
    resources = [
        request.DescribeConfigsResource(resource_type=kind, resource_name=name, configuration_keys=keys)
        for kind, name in ((4, "1"), (4, ""), (2, WIDE))
        for keys in (list[str](), None)
    ]
    message = request(resources=resources * 30, include_synonyms=True, include_documentation=True)
    attacker.call(Api.DESCRIBE_CONFIGS, message)


def _alter(attacker: Attacker, operation: int, value: str) -> None:
    request = m.IncrementalAlterConfigsRequest
    config = request.AlterableConfig(name="cleanup.policy", config_operation=operation, value=value)
    resource = request.AlterConfigsResource(resource_type=2, resource_name=WIDE, configs=[config])
    attacker.call(Api.INCREMENTAL_ALTER_CONFIGS, request(resources=[resource], validate_only=True))


def lists_of_many_items(attacker: Attacker) -> None:
    items = ",".join(f"{number:x}" for number in range(7_000))
    for operation in (0, 2, 3, 2):
        _alter(attacker, operation, items)
