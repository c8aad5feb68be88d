"""Clients that send too much, too little or too slowly, or never read. The limits are small. A well-behaved client is
served meanwhile.
"""

from __future__ import annotations

import asyncio
import logging
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from headrace.broker.broker import Broker
from headrace.broker.limits import BrokerLimits
from headrace.broker.net.server import Server
from headrace.broker.settings import BrokerSettings
from headrace.records import RecordLimits, build_batch
from headrace.wire import Api, decode_response, encode_request
from headrace.wire import messages as m
from headrace.wire.codes import ErrorCode

NOON_MS = 1_700_000_000_000


class Client:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    def send(self, raw: bytes) -> None:
        self.writer.write(raw)

    async def call(self, api: Api, version: int, message: Any) -> Any:
        self.send(encode_request(api, version, 7, "good", message))
        return await self.answer(api, version)

    async def answer(self, api: Api, version: int) -> Any:
        async with asyncio.timeout(120):
            (size,) = struct.unpack(">i", await self.reader.readexactly(4))
            return decode_response(api, version, await self.reader.readexactly(size))[1]

    async def is_closed(self) -> bool:
        """Whether the broker closes the connection within a while; bytes that it still sends are read and discarded."""
        with suppress(ConnectionError):
            async with asyncio.timeout(120):
                while await self.reader.read(1 << 16):
                    pass
        return True


class RunningBroker:
    def __init__(self, broker: Broker, server: Server) -> None:
        self.broker = broker
        self.server = server
        self.clients: list[Client] = []

    async def connect(self) -> Client:
        client = Client(*await asyncio.open_connection("127.0.0.1", self.server.port, limit=1 << 16))
        self.clients.append(client)
        return client

    async def check_service(self) -> None:
        client = await self.connect()
        answer = await client.call(Api.METADATA, 9, m.MetadataRequest(topics=None))
        assert answer.brokers
        client.writer.close()

    async def close(self) -> None:
        for client in self.clients:
            client.writer.transport.abort()
        await self.server.close()
        await self.broker.stop()


@pytest.fixture
async def scene(tmp_path: Path) -> AsyncIterator[Callable[..., Awaitable[RunningBroker]]]:
    scenes: list[RunningBroker] = []

    async def make(**limits: Any) -> RunningBroker:
        settings = BrokerSettings(data_dir=tmp_path / "data", listen_port=0, durability="os")
        broker = Broker(settings, limits=BrokerLimits(**limits))
        server = Server(broker)
        await server.listen("127.0.0.1", 0)
        broker.set_port(server.port)
        await broker.start()
        scenes.append(RunningBroker(broker, server))
        return scenes[-1]

    yield make
    for running in scenes:
        await running.close()


def logged_events(caplog: pytest.LogCaptureFixture, event: str) -> list[str]:
    return [record.getMessage() for record in caplog.records if getattr(record, "event", "") == event]


def frame(api: int, body: bytes = b"", *, version: int = 0) -> bytes:
    frame_bytes = struct.pack(">hhih", api, version, 1, -1) + body
    return struct.pack(">i", len(frame_bytes)) + frame_bytes


async def test_only_a_produce_request_may_have_a_large_frame(
    scene: Callable[..., Awaitable[RunningBroker]], caplog: pytest.LogCaptureFixture
) -> None:
    running = await scene(produce_frame_bytes_max=1 << 20, frame_bytes_max=1 << 14)
    other = await running.connect()
    other.send(struct.pack(">ih", (1 << 14) + 1, Api.METADATA))
    assert await other.is_closed()
    huge = await running.connect()
    huge.send(struct.pack(">ih", (1 << 20) + 1, Api.PRODUCE))
    assert await huge.is_closed()
    produce = await running.connect()
    produce.send(struct.pack(">ih", 1 << 20, Api.PRODUCE) + bytes(5000))
    await running.check_service()
    assert running.server.connections >= 1
    assert len(logged_events(caplog, "oversized-frame")) == 2
    assert running.broker.notices.counts["oversized-frame"] == 2


@pytest.mark.parametrize(
    "raw",
    [
        frame(3000),
        frame(Api.METADATA, version=999),
        frame(Api.METADATA, version=-1),
        frame(Api.JOIN_GROUP, b"\0\5ab", version=2),
        frame(Api.DELETE_TOPICS, b"\x7f\xff\xff\xff", version=1),
        struct.pack(">i", 0),
        struct.pack(">i", 3) + b"abc",
        b"GET / HTTP/1.1\r\n\r\n",
        bytes.fromhex("16030100c8010000c40303") + bytes(200),
    ],
)
async def test_an_invalid_request_closes_its_connection_with_one_log_line(
    scene: Callable[..., Awaitable[RunningBroker]], caplog: pytest.LogCaptureFixture, raw: bytes
) -> None:
    running = await scene()
    client = await running.connect()
    with caplog.at_level(logging.WARNING):
        client.send(raw)
        assert await client.is_closed()
    (record,) = (record for record in caplog.records if hasattr(record, "event"))
    assert "127.0.0.1" in record.getMessage()
    assert record.values["client"] == "127.0.0.1"
    await running.check_service()


async def test_connections_beyond_the_limits_are_closed_and_closed_ones_no_longer_count(
    scene: Callable[..., Awaitable[RunningBroker]],
) -> None:
    running = await scene(connections_max=5, connections_per_address_max=3)
    stay = [await running.connect() for _ in range(3)]
    for client in stay:
        await client.call(Api.API_VERSIONS, 0, m.ApiVersionsRequest())
    assert await (await running.connect()).is_closed()
    assert running.server.connections == 3
    stay[0].writer.close()
    async with asyncio.timeout(120):
        while running.server.connections == 3:
            await asyncio.sleep(0.01)
    await running.check_service()


async def test_a_slow_sender_is_disconnected_at_the_deadline_and_an_idle_client_is_not(
    scene: Callable[..., Awaitable[RunningBroker]], caplog: pytest.LogCaptureFixture
) -> None:
    running = await scene(slow_ms_max=200)
    idle, slow = await running.connect(), await running.connect()
    frame_bytes = frame(Api.API_VERSIONS)

    async def trickle() -> None:
        for byte in frame_bytes[:-1]:
            slow.send(bytes([byte]))
            await asyncio.sleep(0.05)

    trickling = asyncio.create_task(trickle())
    assert await slow.is_closed()
    trickling.cancel()
    assert len(logged_events(caplog, "slow-sender")) == 1
    assert (await idle.call(Api.API_VERSIONS, 0, m.ApiVersionsRequest())).api_keys


async def test_an_idle_client_is_disconnected_without_a_log_line(
    scene: Callable[..., Awaitable[RunningBroker]], caplog: pytest.LogCaptureFixture
) -> None:
    running = await scene(idle_ms_max=200)
    assert await (await running.connect()).is_closed()
    assert running.server.idle_closed == 1
    assert not [record for record in caplog.records if hasattr(record, "event")]


async def produce(client: Client, topic: str, batch: bytes, acks: int = 1) -> Any:
    request = m.ProduceRequest
    data = request.PartitionProduceData(index=0, records=batch)
    response = await client.call(
        Api.PRODUCE,
        8,
        request(
            acks=acks,
            timeout_ms=1000,
            topic_data=[request.TopicProduceData(name=topic, partition_data=[data])],
        ),
    )
    return response.responses[0].partition_responses[0]


def fetch_all(topic: str) -> m.FetchRequest:
    request = m.FetchRequest
    partition_request = request.FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 30)
    return request(
        max_wait_ms=0,
        min_bytes=0,
        max_bytes=1 << 30,
        topics=[request.FetchTopic(topic=topic, partitions=[partition_request])],
    )


async def fill(running: RunningBroker, topic: str, mib: int) -> None:
    client = await running.connect()
    create = m.CreateTopicsRequest
    await client.call(
        Api.CREATE_TOPICS,
        4,
        create(
            topics=[create.CreatableTopic(name=topic, num_partitions=1, replication_factor=1)],
            timeout_ms=9000,
        ),
    )
    for _ in range(mib):
        answer = await produce(
            client, topic, bytes(build_batch([(b"k", bytes(1_000_000), [])], timestamp_ms=NOON_MS))
        )
        assert answer.error_code == 0
    client.writer.close()


async def test_a_client_that_never_reads_uses_little_memory_and_is_disconnected(
    scene: Callable[..., Awaitable[RunningBroker]], caplog: pytest.LogCaptureFixture
) -> None:
    running = await scene(slow_ms_max=500, fetch_bytes_max=4 << 20)
    await fill(running, "big", 8)
    greedy = await running.connect()
    greedy.writer.transport.get_extra_info("socket").setsockopt(1, 8, 4096)
    greedy.reader._transport.pause_reading()  # type: ignore[attr-defined]
    for _ in range(200):
        greedy.send(encode_request(Api.FETCH, 11, 1, "greedy", fetch_all("big")))
    await running.check_service()
    async with asyncio.timeout(120):
        while not logged_events(caplog, "slow-reader") or running.broker.responses_held.total:
            await asyncio.sleep(0.02)
    # One response beyond the limit, not two hundred.
    assert running.broker.responses_held.peak <= (4 << 20) + (2 << 20)
    await running.check_service()


async def test_above_the_total_limit_the_client_that_has_used_memory_for_longest_is_disconnected(
    scene: Callable[..., Awaitable[RunningBroker]], caplog: pytest.LogCaptureFixture
) -> None:
    running = await scene(all_requests_bytes_max=3 << 20, produce_frame_bytes_max=8 << 20)
    first, second, third = [await running.connect() for _ in range(3)]
    for client in (first, second):
        client.send(struct.pack(">ih", 8 << 20, Api.PRODUCE) + bytes(1 << 20))
        await client.writer.drain()
        await running.check_service()
    third.send(struct.pack(">ih", 8 << 20, Api.PRODUCE) + bytes(1 << 20))
    assert await first.is_closed()
    assert len(logged_events(caplog, "overload")) == 1
    await running.check_service()
    assert running.broker.requests_held.total <= 3 << 20


async def test_the_fetch_limit_is_lower_while_clients_have_unread_responses(
    scene: Callable[..., Awaitable[RunningBroker]],
) -> None:
    running = await scene(all_responses_bytes_max=8 << 20, fetch_bytes_max=4 << 20)
    assert running.broker.fetch_bytes_max == 2 << 20
    assert running.broker.responses_held.share() == 2 << 20


async def test_a_half_closed_client_still_gets_its_responses_at_once(
    scene: Callable[..., Awaitable[RunningBroker]],
) -> None:
    running = await scene()
    await fill(running, "quiet", 0)
    client = await running.connect()
    request = fetch_all("quiet")
    request.max_wait_ms, request.min_bytes = 2**31 - 1, 1
    client.send(encode_request(Api.FETCH, 11, 1, "half", request))
    await asyncio.sleep(0.05)
    client.writer.write_eof()
    answer = await client.answer(Api.FETCH, 11)
    assert answer.responses[0].partitions[0].error_code == 0
    assert await client.is_closed()


@pytest.mark.parametrize("codec", range(5))
async def test_a_batch_that_takes_long_to_validate_is_validated_in_a_thread(
    scene: Callable[..., Awaitable[RunningBroker]], codec: int
) -> None:
    running = await scene()
    await fill(running, "t", 0)
    client = await running.connect()
    batch = build_batch([(b"k", b"v" * 20, [])] * 30_000, timestamp_ms=NOON_MS, codec=codec)
    valid = await produce(client, "t", bytes(batch))
    assert (valid.error_code, valid.base_offset) == (0, 0)
    batch[-1] ^= 1
    bad = await produce(client, "t", bytes(batch))
    assert bad.error_code == 2
    assert (
        await produce(client, "t", bytes(build_batch([(b"k", b"v", [])], timestamp_ms=NOON_MS)))
    ).base_offset == 30_000


async def test_other_clients_are_served_while_a_bomb_is_decompressed(
    scene: Callable[..., Awaitable[RunningBroker]],
) -> None:
    running = await scene(records=RecordLimits(unpacked_bytes_max=128 << 20, records_max=1_000_000))
    await fill(running, "t", 0)
    bomber, other = await running.connect(), await running.connect()
    bomb = bytes(build_batch([(None, bytes(100 << 20), [])], timestamp_ms=NOON_MS, codec=4))
    assert len(bomb) < 1 << 16
    sent_at: list[float] = []
    exploding = asyncio.create_task(produce(bomber, "t", bomb))
    while not exploding.done():
        began = asyncio.get_running_loop().time()
        await other.call(Api.API_VERSIONS, 0, m.ApiVersionsRequest())
        sent_at.append(asyncio.get_running_loop().time() - began)
    assert (await exploding).error_code == 0
    assert len(sent_at) >= 2


async def test_a_request_with_more_elements_than_allowed_is_refused_before_it_is_handled(
    scene: Callable[..., Awaitable[RunningBroker]], caplog: pytest.LogCaptureFixture
) -> None:
    running = await scene(request_elements_max=10)
    client = await running.connect()
    request = m.MetadataRequest
    client.send(
        encode_request(
            Api.METADATA,
            9,
            1,
            "c",
            request(topics=[request.MetadataRequestTopic(name=f"t{n}") for n in range(11)]),
        )
    )
    assert await client.is_closed()
    assert "too many array elements" in logged_events(caplog, "malformed-request")[0]
    assert not running.broker.catalog.topics()


async def test_full_responses_serve_the_partitions_of_a_session_in_rotation(
    scene: Callable[..., Awaitable[RunningBroker]],
) -> None:
    running = await scene(fetch_bytes_max=1024)
    await fill(running, "a", 2)
    await fill(running, "b", 2)
    client = await running.connect()
    request = m.FetchRequest
    offsets = {"a": 0, "b": 0}

    def partition_request(names: list[str]) -> list[Any]:
        return [
            request.FetchTopic(
                topic=name,
                partitions=[
                    request.FetchPartition(
                        partition=0, fetch_offset=offsets[name], partition_max_bytes=1 << 20
                    )
                ],
            )
            for name in names
        ]

    call = request(
        max_wait_ms=0, min_bytes=0, max_bytes=1 << 30, session_epoch=0, topics=partition_request(["a", "b"])
    )
    answer = await client.call(Api.FETCH, 11, call)
    session, served = answer.session_id, []
    for epoch in range(1, 5):
        topics = [topic.topic for topic in answer.responses if topic.partitions[0].records]
        for name in topics:
            offsets[name] += 1
        served += topics
        call = request(
            max_wait_ms=0,
            min_bytes=0,
            max_bytes=1 << 30,
            session_id=session,
            session_epoch=epoch,
            topics=partition_request(topics),
        )
        answer = await client.call(Api.FETCH, 11, call)
    assert served == ["a", "b", "a", "b"]


async def test_a_pending_member_id_is_dropped_when_its_connection_closes(
    scene: Callable[..., Awaitable[RunningBroker]],
) -> None:
    running = await scene()
    request = m.JoinGroupRequest
    protocols = [request.JoinGroupRequestProtocol(name="range")]
    call = request(group_id="g", session_timeout_ms=1_800_000, protocol_type="consumer", protocols=protocols)
    first = await running.connect()
    joined = await first.call(Api.JOIN_GROUP, 5, call)
    assert joined.error_code == ErrorCode.MEMBER_ID_REQUIRED
    call.member_id = joined.member_id
    first.writer.close()
    while running.server.connections:
        await asyncio.sleep(0.001)
    second = await running.connect()
    assert (await second.call(Api.JOIN_GROUP, 5, call)).error_code == ErrorCode.UNKNOWN_MEMBER_ID


async def test_a_fetch_beyond_the_limit_of_waiting_fetches_returns_without_records(
    scene: Callable[..., Awaitable[RunningBroker]],
) -> None:
    running = await scene(waiting_fetches_bytes_max=6_000)
    await fill(running, "a", 1)
    request = m.FetchRequest
    partition_request = [request.FetchPartition(partition=0, fetch_offset=1, partition_max_bytes=1)]
    topics = [request.FetchTopic(topic="a", partitions=partition_request)]
    call = request(max_wait_ms=2**31 - 1, min_bytes=1, max_bytes=1, session_epoch=-1, topics=topics)
    waiting = [await running.connect() for _ in range(2)]
    for number, client in enumerate(waiting, 1):
        client.send(encode_request(Api.FETCH, 11, 7, "c", call))
        while running.broker.waiting_fetches.used_bytes < number * 2_560:
            await asyncio.sleep(0.001)
    third = await running.connect()
    (topic,) = (await third.call(Api.FETCH, 11, call)).responses
    assert len(topic.partitions[0].records) == 0
    answer = await produce(third, "a", bytes(build_batch([(b"k", b"v", [])], timestamp_ms=NOON_MS)))
    assert answer.error_code == 0
    for client in waiting:
        (topic,) = (await client.answer(Api.FETCH, 11)).responses
        assert len(topic.partitions[0].records)
    assert running.broker.waiting_fetches.used_bytes == 0
    # When a client closes its connection, the broker frees its memory.
    call.topics[0].partitions[0].fetch_offset = 2
    waiting[0].send(encode_request(Api.FETCH, 11, 7, "c", call))
    while not running.broker.waiting_fetches.used_bytes:
        await asyncio.sleep(0.001)
    waiting[0].writer.close()
    while running.broker.waiting_fetches.used_bytes:
        await asyncio.sleep(0.001)
