"""Requests that take long let others run in between: counted in turns of the event loop, not in time."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

import pytest

from headrace.broker import keyed
from headrace.broker.handlers import produce
from headrace.broker.request import Request
from headrace.files import SystemFiles
from headrace.records import CODEC_NAMES, RecordLimits, build_batch
from headrace.wire import Api
from headrace.wire import messages as m
from headrace.wire.codes import ErrorCode

from .desk import Asking

T = TypeVar("T")
Starting = Callable[..., Awaitable[Asking]]

TOPIC = 2
NOW_MS = 1_700_000_000_000


async def turns_during(work: Awaitable[T]) -> tuple[T, int]:
    """The result, and how often another task ran meanwhile."""
    running = asyncio.ensure_future(work)
    turns = 0
    while not running.done():
        turns += 1
        await asyncio.sleep(0)
    return running.result(), turns


async def test_a_request_to_create_many_topics_lets_others_run(ask: Asking) -> None:
    request = m.CreateTopicsRequest
    topics = [
        request.CreatableTopic(name=f"t{number}", num_partitions=1, replication_factor=1)
        for number in range(500)
    ]
    answer, turns = await turns_during(ask(Api.CREATE_TOPICS, topics=topics, validate_only=True))
    assert {topic.error_code for topic in answer.topics} == {0}
    assert all(len(topic.configs) > 20 for topic in answer.topics)
    assert turns >= 10


async def test_a_request_to_configure_many_topics_lets_others_run(ask: Asking) -> None:
    request = m.AlterConfigsRequest
    resources = [
        request.AlterConfigsResource(resource_type=TOPIC, resource_name=f"none-{number}", configs=[])
        for number in range(500)
    ]
    answer, turns = await turns_during(ask(Api.ALTER_CONFIGS, resources=resources))
    assert {response.error_code for response in answer.responses} == {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
    assert turns >= 12


async def test_a_request_with_many_batches_lets_others_run_and_keeps_their_order(ask: Asking) -> None:
    await ask.create("t")
    request = m.ProduceRequest
    data = [
        request.PartitionProduceData(
            index=0, records=memoryview(bytes(build_batch([(b"k", b"%d" % number, ())], timestamp_ms=NOW_MS)))
        )
        for number in range(1_000)
    ]
    message = request(acks=-1, topic_data=[request.TopicProduceData(name="t", partition_data=data)])
    asked = Request(Api.PRODUCE, 9, 1, "tests", message, "here")
    produced, turns = await turns_during(produce.begin_in_turns(ask.broker, asked))
    for wait in produced.waits:
        await wait
    offsets = [row.base_offset for row in produced.finish().responses[0].partition_responses]
    assert offsets == list(range(1_000))
    assert turns >= 5


async def times(ask: Asking, topic: str, partitions: int, timestamp: int) -> list[tuple[int, int]]:
    request = m.ListOffsetsRequest
    parts = [
        request.ListOffsetsPartition(partition_index=index, timestamp=timestamp)
        for index in range(partitions)
    ]
    (answer,) = (
        await ask(Api.LIST_OFFSETS, 8, topics=[request.ListOffsetsTopic(name=topic, partitions=parts)])
    ).topics
    assert {row.error_code for row in answer.partitions} == {0}
    return [(row.offset, row.timestamp) for row in answer.partitions]


async def test_a_request_for_the_times_of_many_partitions_lets_others_run(ask: Asking) -> None:
    await ask.create("t", 50)
    for index in range(50):
        await ask.append("t", 1_000, 2_000, index=index)
    found, turns = await turns_during(times(ask, "t", 50, 1_500))
    assert found == [(1, 2_000)] * 50
    assert turns >= 50


@pytest.mark.parametrize("timestamp", [9_999, -3])
async def test_a_batch_that_unpacks_to_many_records_is_looked_into_by_a_thread(
    ask: Asking, timestamp: int
) -> None:
    await ask.create("t")
    partition = ask.broker.partition("t", 0)
    assert partition is not None
    records = [(b"k", b"v", ()) for _ in range(5_000)]
    batch = build_batch(records, timestamp_ms=9_999, codec=CODEC_NAMES.index("zstd"))
    accepted = partition.append(batch, NOW_MS, NOW_MS)
    assert accepted.durable is not None
    await accepted.durable
    found, turns = await turns_during(times(ask, "t", 1, timestamp))
    assert found == [(0, 9_999)]
    assert turns > 2


async def test_naming_topics_creates_no_more_of_them_at_once_than_a_request_to_create_them(
    start: Starting,
) -> None:
    ask = await start(configs={"headrace.request.elements.max": "12"})
    topics = [m.MetadataRequest.MetadataRequestTopic(name=f"t{number}") for number in range(5)]

    async def codes() -> list[int]:
        answer = await ask(Api.METADATA, 9, topics=topics, allow_auto_topic_creation=True)
        return [topic.error_code for topic in answer.topics]

    assert await codes() == [0, 0, 3, 3, 3]
    assert await codes() == [0, 0, 0, 0, 3]


async def test_topics_with_the_same_configuration_share_what_follows_from_it(ask: Asking) -> None:
    one, two, other = (
        await ask.create("one"),
        await ask.create("two"),
        await ask.create("other", retention_ms="5"),
    )
    catalog = ask.broker.catalog
    assert catalog.log_config(one) is catalog.log_config(two)
    assert catalog.log_config(other).retention_ms == 5


async def test_an_index_has_an_entry_for_every_64_kib_at_least(ask: Asking) -> None:
    topic = await ask.create("t", index_interval_bytes=str(2**31 - 1))
    assert ask.broker.catalog.log_config(topic).index_interval_bytes == 64 << 10


async def test_files_of_a_deleted_topic_are_removed_by_a_thread(
    ask: Asking, monkeypatch: pytest.MonkeyPatch
) -> None:
    await ask.create("t", 3)
    threads: set[int] = set()
    remove_dir = SystemFiles.remove_dir

    def noting(self: SystemFiles, path: Path) -> None:
        threads.add(threading.get_ident())
        remove_dir(self, path)

    monkeypatch.setattr(SystemFiles, "remove_dir", noting)
    await ask(Api.DELETE_TOPICS, topics=[m.DeleteTopicsRequest.DeleteTopicState(name="t")])
    assert threads
    assert threading.get_ident() not in threads


async def test_keys_are_looked_for_by_a_thread(ask: Asking, monkeypatch: pytest.MonkeyPatch) -> None:
    await ask.create("t")
    await ask.append("t", 1_000)
    threads: set[int] = set()
    opened = keyed.open_batch

    def noting(batch: memoryview, limits: RecordLimits) -> Any:
        threads.add(threading.get_ident())
        return opened(batch, limits)

    monkeypatch.setattr(keyed, "open_batch", noting)
    topic = m.CreatePartitionsRequest.CreatePartitionsTopic(name="t", count=2)
    (answer,) = (await ask(Api.CREATE_PARTITIONS, topics=[topic])).results
    assert answer.error_code == ErrorCode.POLICY_VIOLATION
    assert threads
    assert threading.get_ident() not in threads
