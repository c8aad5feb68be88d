"""Clients that send too much, too little, too slowly or never read, under small limits; a good one is answered."""

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
from headrace.broker.server import Server
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

    async def ask(self, api: Api, version: int, message: Any) -> Any:
        self.send(encode_request(api, version, 7, "good", message))
        return await self.answer(api, version)

    async def answer(self, api: Api, version: int) -> Any:
        async with asyncio.timeout(120):
            (size,) = struct.unpack(">i", await self.reader.readexactly(4))
            return decode_response(api, version, await self.reader.readexactly(size))[1]

    async def closed(self) -> bool:
        """Whether the broker hangs up within a while; what it still says is read and dropped."""
        with suppress(ConnectionError):
            async with asyncio.timeout(120):
                while await self.reader.read(1 << 16):
                    pass
        return True


class Scene:
    def __init__(self, broker: Broker, server: Server) -> None:
        self.broker = broker
        self.server = server
        self.clients: list[Client] = []

    async def connect(self) -> Client:
        client = Client(*await asyncio.open_connection("127.0.0.1", self.server.port, limit=1 << 16))
        self.clients.append(client)
        return client

    async def good(self) -> None:
        client = await self.connect()
        answer = await client.ask(Api.METADATA, 9, m.MetadataRequest(topics=None))
        assert answer.brokers
        client.writer.close()

    async def close(self) -> None:
        for client in self.clients:
            client.writer.transport.abort()
        await self.server.close()
        await self.broker.stop()


@pytest.fixture
async def scene(tmp_path: Path) -> AsyncIterator[Callable[..., Awaitable[Scene]]]:
    scenes: list[Scene] = []

    async def make(**limits: Any) -> Scene:
        settings = BrokerSettings(data_dir=tmp_path / "data", listen_port=0, durability="os")
        broker = Broker(settings, limits=BrokerLimits(**limits))
        server = Server(broker)
        await server.listen("127.0.0.1", 0)
        broker.listens_on(server.port)
        await broker.start()
        scenes.append(Scene(broker, server))
        return scenes[-1]

    yield make
    for one in scenes:
        await one.close()


def said(caplog: pytest.LogCaptureFixture, event: str) -> list[str]:
    return [record.getMessage() for record in caplog.records if getattr(record, "event", "") == event]


def frame(api: int, body: bytes = b"", *, version: int = 0) -> bytes:
    whole = struct.pack(">hhih", api, version, 1, -1) + body
    return struct.pack(">i", len(whole)) + whole


async def test_a_frame_may_be_large_only_where_it_is_a_produce_request(
    scene: Callable[..., Awaitable[Scene]], caplog: pytest.LogCaptureFixture
) -> None:
    world = await scene(produce_frame_bytes_max=1 << 20, frame_bytes_max=1 << 14)
    other = await world.connect()
    other.send(struct.pack(">ih", (1 << 14) + 1, Api.METADATA))
    assert await other.closed()
    huge = await world.connect()
    huge.send(struct.pack(">ih", (1 << 20) + 1, Api.PRODUCE))
    assert await huge.closed()
    produce = await world.connect()
    produce.send(struct.pack(">ih", 1 << 20, Api.PRODUCE) + bytes(5000))
    await world.good()
    assert world.server.connections >= 1
    assert len(said(caplog, "oversized-frame")) == 2
    assert world.broker.notices.counts["oversized-frame"] == 2


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
async def test_what_is_no_request_closes_its_connection_with_one_line_that_says_why(
    scene: Callable[..., Awaitable[Scene]], caplog: pytest.LogCaptureFixture, raw: bytes
) -> None:
    world = await scene()
    client = await world.connect()
    with caplog.at_level(logging.WARNING):
        client.send(raw)
        assert await client.closed()
    (record,) = (record for record in caplog.records if hasattr(record, "event"))
    assert "127.0.0.1" in record.getMessage()
    assert record.values["client"] == "127.0.0.1"
    await world.good()


async def test_connections_beyond_the_limits_are_closed_and_room_is_given_back(
    scene: Callable[..., Awaitable[Scene]],
) -> None:
    world = await scene(connections_max=5, connections_per_address_max=3)
    stay = [await world.connect() for _ in range(3)]
    for client in stay:
        await client.ask(Api.API_VERSIONS, 0, m.ApiVersionsRequest())
    assert await (await world.connect()).closed()
    assert world.server.connections == 3
    stay[0].writer.close()
    async with asyncio.timeout(120):
        while world.server.connections == 3:
            await asyncio.sleep(0.01)
    await world.good()


async def test_a_request_that_trickles_in_is_closed_at_the_deadline_and_an_idle_client_is_not(
    scene: Callable[..., Awaitable[Scene]], caplog: pytest.LogCaptureFixture
) -> None:
    world = await scene(slow_ms_max=200)
    idle, slow = await world.connect(), await world.connect()
    whole = frame(Api.API_VERSIONS)

    async def trickle() -> None:
        for byte in whole[:-1]:
            slow.send(bytes([byte]))
            await asyncio.sleep(0.05)

    trickling = asyncio.create_task(trickle())
    assert await slow.closed()
    trickling.cancel()
    assert len(said(caplog, "slow-sender")) == 1
    assert (await idle.ask(Api.API_VERSIONS, 0, m.ApiVersionsRequest())).api_keys


async def test_an_idle_client_is_closed_without_a_word_when_it_has_been_idle_for_too_long(
    scene: Callable[..., Awaitable[Scene]], caplog: pytest.LogCaptureFixture
) -> None:
    world = await scene(idle_ms_max=200)
    assert await (await world.connect()).closed()
    assert world.server.idle_closed == 1
    assert not [record for record in caplog.records if hasattr(record, "event")]


async def produce(client: Client, topic: str, batch: bytes, acks: int = 1) -> Any:
    request = m.ProduceRequest
    data = request.PartitionProduceData(index=0, records=batch)
    response = await client.ask(
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
    wanted = request.FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 30)
    return request(
        max_wait_ms=0,
        min_bytes=0,
        max_bytes=1 << 30,
        topics=[request.FetchTopic(topic=topic, partitions=[wanted])],
    )


async def fill(world: Scene, topic: str, mib: int) -> None:
    client = await world.connect()
    create = m.CreateTopicsRequest
    await client.ask(
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


async def test_a_client_that_never_reads_holds_little_is_closed_and_disturbs_nobody(
    scene: Callable[..., Awaitable[Scene]], caplog: pytest.LogCaptureFixture
) -> None:
    world = await scene(slow_ms_max=500, fetch_bytes_max=4 << 20)
    await fill(world, "big", 8)
    greedy = await world.connect()
    greedy.writer.transport.get_extra_info("socket").setsockopt(1, 8, 4096)
    greedy.reader._transport.pause_reading()  # type: ignore[attr-defined]
    for _ in range(200):
        greedy.send(encode_request(Api.FETCH, 11, 1, "greedy", fetch_all("big")))
    await world.good()
    async with asyncio.timeout(120):
        while not said(caplog, "slow-reader") or world.broker.answers_held.total:
            await asyncio.sleep(0.02)
    # One answer beyond the limit, not two hundred.
    assert world.broker.answers_held.peak <= (4 << 20) + (2 << 20)
    await world.good()


async def test_when_all_together_hold_too_much_the_one_that_has_waited_longest_goes(
    scene: Callable[..., Awaitable[Scene]], caplog: pytest.LogCaptureFixture
) -> None:
    world = await scene(all_requests_bytes_max=3 << 20, produce_frame_bytes_max=8 << 20)
    first, second, third = [await world.connect() for _ in range(3)]
    for client in (first, second):
        client.send(struct.pack(">ih", 8 << 20, Api.PRODUCE) + bytes(1 << 20))
        await client.writer.drain()
        await world.good()
    third.send(struct.pack(">ih", 8 << 20, Api.PRODUCE) + bytes(1 << 20))
    assert await first.closed()
    assert len(said(caplog, "overload")) == 1
    await world.good()
    assert world.broker.requests_held.total <= 3 << 20


async def test_answers_get_smaller_as_untaken_ones_pile_up(scene: Callable[..., Awaitable[Scene]]) -> None:
    world = await scene(all_answers_bytes_max=8 << 20, fetch_bytes_max=4 << 20)
    assert world.broker.fetch_bytes_max == 2 << 20
    assert world.broker.answers_held.share() == 2 << 20


async def test_a_half_closed_client_still_gets_its_answers_at_once(
    scene: Callable[..., Awaitable[Scene]],
) -> None:
    world = await scene()
    await fill(world, "quiet", 0)
    client = await world.connect()
    request = fetch_all("quiet")
    request.max_wait_ms, request.min_bytes = 2**31 - 1, 1
    client.send(encode_request(Api.FETCH, 11, 1, "half", request))
    await asyncio.sleep(0.05)
    client.writer.write_eof()
    answer = await client.answer(Api.FETCH, 11)
    assert answer.responses[0].partitions[0].error_code == 0
    assert await client.closed()


@pytest.mark.parametrize("codec", range(5))
async def test_a_batch_that_takes_long_to_walk_is_walked_aside_and_appended_like_any_other(
    scene: Callable[..., Awaitable[Scene]], codec: int
) -> None:
    world = await scene()
    await fill(world, "t", 0)
    client = await world.connect()
    batch = build_batch([(b"k", b"v" * 20, [])] * 30_000, timestamp_ms=NOON_MS, codec=codec)
    good = await produce(client, "t", bytes(batch))
    assert (good.error_code, good.base_offset) == (0, 0)
    batch[-1] ^= 1
    bad = await produce(client, "t", bytes(batch))
    assert bad.error_code == 2
    assert (
        await produce(client, "t", bytes(build_batch([(b"k", b"v", [])], timestamp_ms=NOON_MS)))
    ).base_offset == 30_000


async def test_other_clients_are_answered_while_a_bomb_unpacks(
    scene: Callable[..., Awaitable[Scene]],
) -> None:
    world = await scene(records=RecordLimits(unpacked_bytes_max=128 << 20, records_max=1_000_000))
    await fill(world, "t", 0)
    bomber, good = await world.connect(), await world.connect()
    bomb = bytes(build_batch([(None, bytes(100 << 20), [])], timestamp_ms=NOON_MS, codec=4))
    assert len(bomb) < 1 << 16
    asked: list[float] = []
    exploding = asyncio.create_task(produce(bomber, "t", bomb))
    while not exploding.done():
        began = asyncio.get_running_loop().time()
        await good.ask(Api.API_VERSIONS, 0, m.ApiVersionsRequest())
        asked.append(asyncio.get_running_loop().time() - began)
    assert (await exploding).error_code == 0
    assert len(asked) >= 2


async def test_a_request_with_more_elements_than_allowed_is_refused_before_it_is_handled(
    scene: Callable[..., Awaitable[Scene]], caplog: pytest.LogCaptureFixture
) -> None:
    world = await scene(request_elements_max=10)
    client = await world.connect()
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
    assert await client.closed()
    assert "more elements" in said(caplog, "malformed-request")[0]
    assert not world.broker.catalog.topics()


async def test_partitions_of_a_session_take_turns_when_an_answer_does_not_hold_them_all(
    scene: Callable[..., Awaitable[Scene]],
) -> None:
    world = await scene(fetch_bytes_max=1024)
    await fill(world, "a", 2)
    await fill(world, "b", 2)
    client = await world.connect()
    request = m.FetchRequest
    offsets = {"a": 0, "b": 0}

    def wanted(names: list[str]) -> list[Any]:
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

    ask = request(max_wait_ms=0, min_bytes=0, max_bytes=1 << 30, session_epoch=0, topics=wanted(["a", "b"]))
    answer = await client.ask(Api.FETCH, 11, ask)
    session, served = answer.session_id, []
    for epoch in range(1, 5):
        got = [topic.topic for topic in answer.responses if topic.partitions[0].records]
        for name in got:
            offsets[name] += 1
        served += got
        ask = request(
            max_wait_ms=0,
            min_bytes=0,
            max_bytes=1 << 30,
            session_id=session,
            session_epoch=epoch,
            topics=wanted(got),
        )
        answer = await client.ask(Api.FETCH, 11, ask)
    assert served == ["a", "b", "a", "b"]


async def test_a_member_id_that_was_given_out_is_forgotten_when_its_client_hangs_up(
    scene: Callable[..., Awaitable[Scene]],
) -> None:
    world = await scene()
    request = m.JoinGroupRequest
    protocols = [request.JoinGroupRequestProtocol(name="range")]
    ask = request(group_id="g", session_timeout_ms=1_800_000, protocol_type="consumer", protocols=protocols)
    first = await world.connect()
    given = await first.ask(Api.JOIN_GROUP, 5, ask)
    assert given.error_code == ErrorCode.MEMBER_ID_REQUIRED
    ask.member_id = given.member_id
    first.writer.close()
    while world.server.connections:
        await asyncio.sleep(0.001)
    second = await world.connect()
    assert (await second.ask(Api.JOIN_GROUP, 5, ask)).error_code == ErrorCode.UNKNOWN_MEMBER_ID


async def test_a_fetch_that_there_is_no_room_to_wait_with_is_answered_without_records(
    scene: Callable[..., Awaitable[Scene]],
) -> None:
    world = await scene(waiting_fetches_bytes_max=6_000)
    await fill(world, "a", 1)
    request = m.FetchRequest
    wanted = [request.FetchPartition(partition=0, fetch_offset=1, partition_max_bytes=1)]
    topics = [request.FetchTopic(topic="a", partitions=wanted)]
    ask = request(max_wait_ms=2**31 - 1, min_bytes=1, max_bytes=1, session_epoch=-1, topics=topics)
    waiting = [await world.connect() for _ in range(2)]
    for number, client in enumerate(waiting, 1):
        client.send(encode_request(Api.FETCH, 11, 7, "c", ask))
        while world.broker.waiting_fetches.used_bytes < number * 2_560:
            await asyncio.sleep(0.001)
    third = await world.connect()
    (topic,) = (await third.ask(Api.FETCH, 11, ask)).responses
    assert len(topic.partitions[0].records) == 0
    answer = await produce(third, "a", bytes(build_batch([(b"k", b"v", [])], timestamp_ms=NOON_MS)))
    assert answer.error_code == 0
    for client in waiting:
        (topic,) = (await client.answer(Api.FETCH, 11)).responses
        assert len(topic.partitions[0].records)
    assert world.broker.waiting_fetches.used_bytes == 0
    # A client that hangs up gives its room back.
    ask.topics[0].partitions[0].fetch_offset = 2
    waiting[0].send(encode_request(Api.FETCH, 11, 7, "c", ask))
    while not world.broker.waiting_fetches.used_bytes:
        await asyncio.sleep(0.001)
    waiting[0].writer.close()
    while world.broker.waiting_fetches.used_bytes:
        await asyncio.sleep(0.001)
