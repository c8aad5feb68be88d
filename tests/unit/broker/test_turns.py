"""Long requests yield to other tasks. The tests count iterations of the event loop, not time."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

import pytest

from headrace.broker.event_loop import Turns
from headrace.broker.handlers import HANDLERS, fetch, produce
from headrace.broker.handlers import topics as topic_handlers
from headrace.broker.net.request import Request
from headrace.files import SystemFiles
from headrace.records import CODEC_NAMES, RecordLimits, build_batch
from headrace.wire import Api, decode_response, encode_response
from headrace.wire import messages as m
from headrace.wire.codes import ErrorCode

from .broker_calls import BrokerCalls

T = TypeVar("T")
StartBroker = Callable[..., Awaitable[BrokerCalls]]

TOPIC = 2
NOW_MS = 1_700_000_000_000


async def iterations_during(work: Awaitable[T]) -> tuple[T, int]:
    """Await the work; return its result and how often another task ran meanwhile."""
    running = asyncio.ensure_future(work)
    iterations = 0
    while not running.done():
        iterations += 1
        await asyncio.sleep(0)
    return running.result(), iterations


async def test_long_requests_take_turns_in_order_and_other_tasks_run_between_their_steps() -> None:
    turns = Turns()
    steps: list[str] = []

    async def long_request(name: str) -> None:
        async with turns:
            for _ in range(2):
                steps.append(name)
                await turns.pause()

    async def small_requests() -> None:
        while True:
            steps.append("small")
            await asyncio.sleep(0)

    small = asyncio.ensure_future(small_requests())
    await asyncio.gather(long_request("a"), long_request("b"), long_request("c"))
    small.cancel()
    long_steps = [name for name in steps if name != "small"]
    assert long_steps == ["a", "a", "b", "b", "c", "c"]
    assert all("small" in (first, second) for first, second in pairwise(steps))


async def test_a_task_keeps_its_turn_until_it_gives_it_back() -> None:
    turns = Turns()
    await turns.take()
    await turns.take()
    other = asyncio.ensure_future(turns.wait())
    _, pending = await asyncio.wait([other], timeout=0.01)
    assert pending
    turns.give_back()
    turns.give_back()
    await other


async def test_a_cancelled_wait_passes_the_turn_on() -> None:
    turns = Turns()

    async def request() -> None:
        async with turns:
            await asyncio.sleep(0)

    await turns.take()
    first, second = asyncio.ensure_future(request()), asyncio.ensure_future(request())
    await asyncio.sleep(0)
    first.cancel()
    turns.give_back()
    await second
    assert first.cancelled()
    # A task that is cancelled during the pause at the start of its turn does not keep the turn.
    third = asyncio.ensure_future(request())
    await asyncio.sleep(0)
    third.cancel()
    await asyncio.wait([third])
    await turns.wait()


async def test_a_request_to_create_many_topics_yields_to_other_tasks(call: BrokerCalls) -> None:
    request = m.CreateTopicsRequest
    topics = [
        request.CreatableTopic(name=f"t{number}", num_partitions=1, replication_factor=1)
        for number in range(500)
    ]
    answer, iterations = await iterations_during(call(Api.CREATE_TOPICS, topics=topics, validate_only=True))
    assert {topic.error_code for topic in answer.topics} == {0}
    assert all(len(topic.configs) > 20 for topic in answer.topics)
    assert iterations >= 10


async def test_a_request_to_configure_many_topics_yields_to_other_tasks(call: BrokerCalls) -> None:
    request = m.AlterConfigsRequest
    resources = [
        request.AlterConfigsResource(resource_type=TOPIC, resource_name=f"none-{number}", configs=[])
        for number in range(500)
    ]
    answer, iterations = await iterations_during(call(Api.ALTER_CONFIGS, resources=resources))
    assert {response.error_code for response in answer.responses} == {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
    assert iterations >= 12


async def test_a_request_with_many_batches_yields_to_other_tasks_and_keeps_their_order(
    call: BrokerCalls,
) -> None:
    await call.create("t")
    request = m.ProduceRequest
    data = [
        request.PartitionProduceData(
            index=0, records=memoryview(bytes(build_batch([(b"k", b"%d" % number, ())], timestamp_ms=NOW_MS)))
        )
        for number in range(1_000)
    ]
    message = request(acks=-1, topic_data=[request.TopicProduceData(name="t", partition_data=data)])
    produce_request = Request(Api.PRODUCE, 9, 1, "tests", message, "here")
    produced, iterations = await iterations_during(
        produce.begin_in_steps(
            call.broker, produce_request, produce.prevalidate(call.broker, produce_request, 0)
        )
    )
    for wait in produced.durable_futures:
        await wait
    offsets = [row.base_offset for row in produced.finish().responses[0].partition_responses]
    assert offsets == list(range(1_000))
    assert iterations >= 5


def fetch_request(topic: str, partitions: int, epoch: int = 0) -> Request:
    request = m.FetchRequest
    wanted = [
        request.FetchPartition(partition=index, fetch_offset=0, partition_max_bytes=1_000)
        for index in range(partitions)
    ]
    message = request(
        max_bytes=1 << 20, session_epoch=epoch, topics=[request.FetchTopic(topic=topic, partitions=wanted)]
    )
    return Request(Api.FETCH, 12, 1, "tests", message, "here")


async def encode_fetch(response: Any) -> bytes:
    return encode_response(Api.FETCH, 12, 1, response)


async def test_a_fetch_of_many_partitions_yields_to_other_tasks(call: BrokerCalls) -> None:
    whole = fetch.begin(call.broker, fetch_request("none", 2_000))
    assert whole.is_large
    expected = await encode_fetch(whole.attempt(last=True))
    in_turns = fetch.begin(call.broker, fetch_request("none", 2_000))
    encoded, iterations = await iterations_during(in_turns.encoded_in_turn(encode_fetch, last=True))
    assert encoded == expected
    assert iterations >= 8
    assert not fetch.begin(call.broker, fetch_request("none", 10)).is_large


async def test_a_session_can_change_during_a_long_fetch(
    call: BrokerCalls, monkeypatch: pytest.MonkeyPatch
) -> None:
    await call.create("t", 300)
    for index in (0, 298, 299):
        await call.append("t", 1_000, index=index)
    fetching = fetch.begin(call.broker, fetch_request("t", 300))
    assert fetching.session is not None
    examined = 0
    examine = fetching._examine

    def count(*arguments: Any) -> None:
        nonlocal examined
        examined += 1
        examine(*arguments)

    monkeypatch.setattr(fetching, "_examine", count)
    running = asyncio.ensure_future(fetching.encoded_in_turn(encode_fetch, last=True))
    while not examined:
        await asyncio.sleep(0)
    assert examined < 299
    for index in (299, 298):
        del fetching.session.partitions["t", index]
    encoded = await running
    assert encoded is not None
    (topic,) = decode_response(Api.FETCH, 12, encoded[4:])[1].responses
    assert [row.partition_index for row in topic.partitions if row.records] == [0, 298, 299]


async def test_only_one_long_response_at_a_time_is_in_memory_before_it_is_encoded(call: BrokerCalls) -> None:
    request = m.DescribeConfigsRequest
    resources = [
        request.DescribeConfigsResource(resource_type=TOPIC, resource_name=f"none-{number}")
        for number in range(200)
    ]
    building = 0

    async def client() -> int:
        nonlocal building
        message = request(resources=resources)
        response = await HANDLERS[Api.DESCRIBE_CONFIGS](
            call.broker, Request(Api.DESCRIBE_CONFIGS, 4, 1, "tests", message, "here")
        )
        building += 1
        concurrent = building
        await asyncio.sleep(0.001)
        building -= 1
        call.broker.turns.give_back()
        assert len(response.results) == len(resources)
        return concurrent

    assert await asyncio.gather(*(client() for _ in range(10))) == [1] * 10


async def times(call: BrokerCalls, topic: str, partitions: int, timestamp: int) -> list[tuple[int, int]]:
    request = m.ListOffsetsRequest
    parts = [
        request.ListOffsetsPartition(partition_index=index, timestamp=timestamp)
        for index in range(partitions)
    ]
    (answer,) = (
        await call(Api.LIST_OFFSETS, 8, topics=[request.ListOffsetsTopic(name=topic, partitions=parts)])
    ).topics
    assert {row.error_code for row in answer.partitions} == {0}
    return [(row.offset, row.timestamp) for row in answer.partitions]


async def test_a_time_lookup_in_many_partitions_yields_to_other_tasks(call: BrokerCalls) -> None:
    await call.create("t", 50)
    for index in range(50):
        await call.append("t", 1_000, 2_000, index=index)
    offsets_found, iterations = await iterations_during(times(call, "t", 50, 1_500))
    assert offsets_found == [(1, 2_000)] * 50
    assert iterations >= 50


@pytest.mark.parametrize("timestamp", [9_999, -3])
async def test_a_thread_searches_a_batch_that_decompresses_to_many_records(
    call: BrokerCalls, timestamp: int
) -> None:
    await call.create("t")
    partition = call.broker.partition("t", 0)
    assert partition is not None
    records = [(b"k", b"v", ()) for _ in range(5_000)]
    batch = build_batch(records, timestamp_ms=9_999, codec=CODEC_NAMES.index("zstd"))
    accepted = partition.append(batch, NOW_MS, NOW_MS)
    assert accepted.durable is not None
    await accepted.durable
    offsets_found, iterations = await iterations_during(times(call, "t", 1, timestamp))
    assert offsets_found == [(0, 9_999)]
    assert iterations > 2


async def test_metadata_creates_at_most_as_many_topics_as_one_create_topics_request(
    start: StartBroker,
) -> None:
    call = await start(configs={"headrace.request.elements.max": "12"})
    topics = [m.MetadataRequest.MetadataRequestTopic(name=f"t{number}") for number in range(5)]

    async def codes() -> list[int]:
        answer = await call(Api.METADATA, 9, topics=topics, allow_auto_topic_creation=True)
        return [topic.error_code for topic in answer.topics]

    assert await codes() == [0, 0, 3, 3, 3]
    assert await codes() == [0, 0, 0, 0, 3]


async def test_topics_with_the_same_configuration_share_its_encoded_form(call: BrokerCalls) -> None:
    first, second, other = (
        await call.create("one"),
        await call.create("two"),
        await call.create("other", retention_ms="5"),
    )
    catalog = call.broker.catalog
    assert catalog.log_config(first) is catalog.log_config(second)
    assert catalog.log_config(other).retention_ms == 5


async def test_an_index_has_an_entry_for_every_64_kib_at_least(call: BrokerCalls) -> None:
    topic = await call.create("t", index_interval_bytes=str(2**31 - 1))
    assert call.broker.catalog.log_config(topic).index_interval_bytes == 64 << 10


async def test_files_of_a_deleted_topic_are_removed_by_a_thread(
    call: BrokerCalls, monkeypatch: pytest.MonkeyPatch
) -> None:
    await call.create("t", 3)
    threads: set[int] = set()
    remove_dir = SystemFiles.remove_dir

    def record_thread(self: SystemFiles, path: Path) -> None:
        threads.add(threading.get_ident())
        remove_dir(self, path)

    monkeypatch.setattr(SystemFiles, "remove_dir", record_thread)
    await call(Api.DELETE_TOPICS, topics=[m.DeleteTopicsRequest.DeleteTopicState(name="t")])
    assert threads
    assert threading.get_ident() not in threads


async def test_a_thread_searches_for_keys(call: BrokerCalls, monkeypatch: pytest.MonkeyPatch) -> None:
    await call.create("t")
    await call.append("t", 1_000)
    threads: set[int] = set()
    open_batch = topic_handlers.open_batch

    def record_thread(batch: memoryview, limits: RecordLimits) -> Any:
        threads.add(threading.get_ident())
        return open_batch(batch, limits)

    monkeypatch.setattr(topic_handlers, "open_batch", record_thread)
    topic = m.CreatePartitionsRequest.CreatePartitionsTopic(name="t", count=2)
    (answer,) = (await call(Api.CREATE_PARTITIONS, topics=[topic])).results
    assert answer.error_code == ErrorCode.POLICY_VIOLATION
    assert threads
    assert threading.get_ident() not in threads
