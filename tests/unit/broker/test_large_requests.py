"""Requests and responses with many items, over a socket: they take turns, their memory counts, and no turn is lost."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from headrace.broker.handlers import fetch, produce
from headrace.broker.handlers.fetch import PendingFetch
from headrace.broker.net import connection
from headrace.broker.net.request import Request
from headrace.broker.net.waiting_fetches import WaitingFetch
from headrace.records import CODEC_NAMES, build_batch
from headrace.wire import Api, encode_request
from headrace.wire import messages as m
from headrace.wire.codes import ErrorCode

from .broker_calls import BrokerCalls
from .test_hostile_clients import RunningBroker, scene

__all__ = ["scene"]

Scene = Callable[..., Awaitable[RunningBroker]]

NOW_MS = 1_700_000_000_000
LARGE_FRAME_BYTES = 16 << 10


def names(count: int, name_chars: int = 5) -> list[str]:
    return [f"t{number}".ljust(name_chars, "x") for number in range(count)]


def fetch_of(topics: list[str], *, max_wait_ms: int, **fields: Any) -> Any:
    request = m.FetchRequest
    return request(
        max_wait_ms=max_wait_ms,
        min_bytes=1,
        max_bytes=1 << 20,
        topics=[
            request.FetchTopic(
                topic=name,
                partitions=[request.FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1_000)],
            )
            for name in topics
        ],
        **fields,
    )


async def create(running: RunningBroker, topics: list[str]) -> None:
    call = BrokerCalls(running.broker)
    for name in topics:
        await call.create(name)


def request_for(topics: list[str]) -> Request:
    return Request(Api.FETCH, 12, 1, "tests", fetch_of(topics, max_wait_ms=60_000), "here")


async def test_the_response_to_a_fetch_that_waited_gives_its_turn_back(scene: Scene) -> None:
    running = await scene()
    topics = names(200)
    await create(running, topics)
    client = await running.connect()
    answer = await client.call(Api.FETCH, 12, fetch_of(topics, max_wait_ms=50))
    assert len(answer.responses) == 200
    assert not running.broker.turns.is_taken
    described = await client.call(Api.DESCRIBE_GROUPS, 5, m.DescribeGroupsRequest(groups=["g"]))
    assert [group.group_state for group in described.groups] == ["Dead"]


async def test_a_fetch_in_a_large_frame_gets_available_records_without_a_wait(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(connection, "WaitingFetch")
    running = await scene()
    topics = names(150, name_chars=150)
    await create(running, topics)
    await BrokerCalls(running.broker).append(topics[-1], 1_000)
    message = fetch_of(topics, max_wait_ms=300_000)
    assert len(encode_request(Api.FETCH, 12, 1, "tests", message)) > LARGE_FRAME_BYTES
    client = await running.connect()
    answer = await client.call(Api.FETCH, 12, message)
    assert [topic.topic for topic in answer.responses if topic.partitions[0].records] == [topics[-1]]


async def test_a_fetch_in_a_large_frame_waits_without_its_turn_and_gets_the_next_record(scene: Scene) -> None:
    running = await scene()
    topics = names(150, name_chars=150)
    await create(running, topics)
    client, other = await running.connect(), await running.connect()
    fetching = asyncio.ensure_future(client.call(Api.FETCH, 12, fetch_of(topics, max_wait_ms=300_000)))
    partition = running.broker.partition(topics[0], 0)
    assert partition is not None
    async with asyncio.timeout(120):
        while not partition.watchers:
            await asyncio.sleep(0.01)
    described = await other.call(Api.DESCRIBE_GROUPS, 5, m.DescribeGroupsRequest(groups=["g"]))
    assert [group.group_state for group in described.groups] == ["Dead"]
    await BrokerCalls(running.broker).append(topics[0], 1_000)
    answer = await fetching
    assert [topic.topic for topic in answer.responses if topic.partitions[0].records] == [topics[0]]


async def test_a_large_frame_for_an_unknown_session_gets_its_error(scene: Scene) -> None:
    running = await scene()
    message = fetch_of(names(150, name_chars=150), max_wait_ms=300_000, session_id=9, session_epoch=5)
    client = await running.connect()
    answer = await client.call(Api.FETCH, 12, message)
    assert answer.error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert (await client.call(Api.METADATA, 9, m.MetadataRequest(topics=None))).brokers


async def test_a_large_frame_that_cannot_be_decoded_closes_its_connection_only(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    running = await scene()
    raw = bytearray(encode_request(Api.FETCH, 12, 1, "tests", fetch_of(names(400, 50), max_wait_ms=1)))
    raw[60:70] = b"\xff" * 10
    client = await running.connect()
    client.send(bytes(raw))
    assert await client.is_closed()
    assert [record.getMessage() for record in caplog.records if record.levelname == "ERROR"] == []
    await running.check_service()
    assert not running.broker.turns.is_taken


async def test_a_record_that_arrives_while_a_large_fetch_is_examined_ends_its_wait(
    call: BrokerCalls, monkeypatch: pytest.MonkeyPatch
) -> None:
    topics = names(600)
    for name in topics:
        await call.create(name)
    pending_fetch = fetch.begin(call.broker, request_for(topics))
    examine = PendingFetch._examine
    appended: list[asyncio.Task[None]] = []

    def examine_and_append(self: PendingFetch, target: Any, attempt: Any) -> None:
        examine(self, target, attempt)
        if target.topic == topics[0] and not appended:
            appended.append(asyncio.ensure_future(call.append(topics[0], 1_000)))

    monkeypatch.setattr(PendingFetch, "_examine", examine_and_append)
    responses: list[Any] = []

    async def encode(response: Any, records_bytes: int) -> Any:
        responses.append(response)
        return [bytearray()]

    waiting = WaitingFetch(call.broker, pending_fetch, encode, respond_now=False)
    async with asyncio.timeout(120):
        running = asyncio.ensure_future(waiting.response())
        while not appended or not appended[0].done():
            await asyncio.sleep(0.001)
        await running
    waiting.close()
    assert [topic.topic for topic in responses[0].responses if topic.partitions[0].records] == [topics[0]]
    assert call.broker.waiting_fetches.used_bytes == 0


async def test_a_fetch_misses_no_record_between_its_first_attempt_and_its_wait(call: BrokerCalls) -> None:
    await call.create("t")
    pending_fetch = fetch.begin(call.broker, request_for(["t"]))
    assert pending_fetch.attempt(last=False) is None

    async def encode(response: Any, records_bytes: int) -> Any:
        return response

    waiting = WaitingFetch(call.broker, pending_fetch, encode, respond_now=False)
    running = asyncio.ensure_future(waiting.response())
    await call.append("t", 1_000)
    async with asyncio.timeout(120):
        response: Any = await running
    waiting.close()
    assert response.responses[0].partitions[0].records


async def test_responses_that_wait_for_a_turn_count_as_memory_and_are_evicted_above_the_limit(
    scene: Scene,
) -> None:
    running = await scene(all_responses_bytes_max=512 << 10)
    request = m.OffsetCommitRequest
    partitions = [request.OffsetCommitRequestPartition(partition_index=index) for index in range(700)]
    message = request(
        group_id="g", topics=[request.OffsetCommitRequestTopic(name="t", partitions=partitions)]
    )
    assert len(encode_request(Api.OFFSET_COMMIT, 8, 1, "good", message)) < LARGE_FRAME_BYTES
    await running.broker.turns.take()
    clients = [await running.connect() for _ in range(6)]
    calls = [asyncio.ensure_future(client.call(Api.OFFSET_COMMIT, 8, message)) for client in clients]
    async with asyncio.timeout(120):
        while not running.broker.responses_held.evicted:
            await asyncio.sleep(0.01)
    held = running.broker.responses_held
    assert held.total <= held.bytes_max
    running.broker.turns.give_back()
    answers = await asyncio.gather(*calls, return_exceptions=True)
    served = [answer for answer in answers if not isinstance(answer, BaseException)]
    assert served
    assert all(len(answer.topics[0].partitions) == 700 for answer in served)
    async with asyncio.timeout(120):
        while held.total:
            await asyncio.sleep(0.01)


async def test_the_memory_of_a_decoded_request_counts_until_it_is_handled(scene: Scene) -> None:
    running = await scene()
    message = m.DescribeGroupsRequest(groups=names(2_000, name_chars=20))
    raw = encode_request(Api.DESCRIBE_GROUPS, 5, 1, "tests", message)
    assert len(raw) > LARGE_FRAME_BYTES
    broker = running.broker
    await broker.turns.take()
    first, second = await running.connect(), await running.connect()
    first.send(raw)
    second.send(raw)
    async with asyncio.timeout(120):
        while broker.requests_held.total < 2 * (len(raw) - 4):
            await asyncio.sleep(0.01)
    # The first client is decoded. It waits for the second turn, behind the second client.
    broker.turns.give_back()
    async with asyncio.timeout(120):
        while broker.requests_held.peak < 2 * len(raw) + 2_000 * 200:
            await asyncio.sleep(0)
    for client in (first, second):
        assert len((await client.answer(Api.DESCRIBE_GROUPS, 5)).groups) == 2_000
    async with asyncio.timeout(120):
        while broker.requests_held.total:
            await asyncio.sleep(0.01)


async def test_a_refused_batch_is_freed_without_a_garbage_collection(call: BrokerCalls) -> None:
    await call.create("t")
    request = m.ProduceRequest
    zstd = CODEC_NAMES.index("zstd")
    damaged = bytearray(build_batch([(b"k", b"v" * 100_000, ())], timestamp_ms=NOW_MS, codec=zstd))
    damaged[17] ^= 1

    class Frame(bytearray):
        """A frame that can be observed."""

    raw = Frame(damaged)
    observed = weakref.ref(raw)
    data = request.PartitionProduceData(index=0, records=memoryview(raw))
    message = request(acks=-1, topic_data=[request.TopicProduceData(name="t", partition_data=[data])])
    produce_request: Any = Request(Api.PRODUCE, 9, 1, "tests", message, "here")
    gc.collect()
    gc.disable()
    try:
        prevalidation = produce.prevalidate(call.broker, produce_request, len(raw))
        if prevalidation.needs_thread:
            prevalidation.run()
        assert prevalidation.results[0] is not None
        produced = produce.begin(call.broker, produce_request, prevalidation.results)
        (row,) = produced.response.responses[0].partition_responses
        assert row.error_code == ErrorCode.CORRUPT_MESSAGE
        del raw, data, message, produce_request, prevalidation, produced, row, request
        assert observed() is None
    finally:
        gc.enable()
