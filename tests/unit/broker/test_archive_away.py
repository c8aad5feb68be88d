"""A bucket that hangs, refuses or is not there, as the broker's clients and its operator see it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from headrace.broker import keyed
from headrace.broker.partition import Partition
from headrace.broker.server import Server
from headrace.records import build_batch
from headrace.wire import Api, decode_response, encode_request
from headrace.wire import messages as m
from headrace.wire.codes import ErrorCode
from tests.support.s3 import CREDENTIALS, S3Server

from .desk import Asking
from .test_archiver import archived, put, readable

Starting = Callable[..., Awaitable[Asking]]
FETCH_VERSION, TIMES_VERSION, METADATA_VERSION = 11, 7, 12


class Client:
    """One connection, by the protocol's bytes."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    async def ask(self, api: Api, version: int, message: Any) -> Any:
        self._writer.write(encode_request(api, version, 7, "tests", message))
        size = int.from_bytes(await self._reader.readexactly(4), "big")
        return decode_response(api, version, await self._reader.readexactly(size))[1]

    async def fetch(
        self, *places: tuple[str, int], min_bytes: int = 1, each_bytes: int = 1 << 20
    ) -> dict[str, Any]:
        """From offsets of partition 0 of topics on; what is answered of each."""
        request = m.FetchRequest
        message = request(
            max_bytes=1 << 20,
            min_bytes=min_bytes,
            max_wait_ms=100,
            session_epoch=-1,
            topics=[
                request.FetchTopic(
                    topic=name,
                    partitions=[
                        request.FetchPartition(
                            partition=0, fetch_offset=offset, partition_max_bytes=each_bytes
                        )
                    ],
                )
                for name, offset in places
            ],
        )
        response = await self.ask(Api.FETCH, FETCH_VERSION, message)
        return {topic.topic: topic.partitions[0] for topic in response.responses}

    async def until_answered(self, name: str, offset: int) -> Any:
        """Records or an error: an archive that is slow is asked again, as clients do."""
        async with asyncio.timeout(240):
            while True:
                answer = (await self.fetch((name, offset)))[name]
                if answer.error_code or answer.records:
                    return answer

    async def offset_at(self, name: str, timestamp_ms: int) -> Any:
        request = m.ListOffsetsRequest
        partition = request.ListOffsetsPartition(partition_index=0, timestamp=timestamp_ms)
        topic = request.ListOffsetsTopic(name=name, partitions=[partition])
        response = await self.ask(Api.LIST_OFFSETS, TIMES_VERSION, request(topics=[topic]))
        return response.topics[0].partitions[0]

    async def topics(self) -> list[str]:
        response = await self.ask(Api.METADATA, METADATA_VERSION, m.MetadataRequest(topics=None))
        return [topic.name for topic in response.topics]

    def close(self) -> None:
        self._writer.close()


@asynccontextmanager
async def served(ask: Asking) -> AsyncIterator[Callable[[], Awaitable[Client]]]:
    """The broker behind a socket, and connections to it."""
    server = Server(ask.broker)
    await server.listen("127.0.0.1", 0)
    clients: list[Client] = []

    async def connect() -> Client:
        clients.append(Client(*await asyncio.open_connection("127.0.0.1", server.port)))
        return clients[-1]

    try:
        yield connect
    finally:
        for client in clients:
            client.close()
        await server.close()


@pytest.fixture
def bucket(s3: S3Server) -> str:
    return s3.fresh_bucket()


@pytest.fixture
async def ask(start: Starting, s3: S3Server, bucket: str) -> Asking:
    return await start(archive_bucket=s3.address(bucket))


async def moved(ask: Asking, count: int = 30, topic: str = "orders") -> Partition:
    """A topic of which the first offsets are in the bucket."""
    partition = await archived(ask, count, topic)
    await ask.broker.archiver.run()
    assert partition.local_start_offset > 0
    return partition


async def delete(ask: Asking, name: str) -> int:
    state = m.DeleteTopicsRequest.DeleteTopicState(name=name, topic_id=bytes(16))
    response = await ask(Api.DELETE_TOPICS, topics=[state])
    return int(response.responses[0].error_code)


def errors(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]


async def test_a_bucket_that_hangs_keeps_nobody_but_its_own_readers_waiting(
    ask: Asking, s3: S3Server
) -> None:
    partition = await moved(ask)
    local = partition.local_start_offset
    await ask.create("other")
    await ask.append("other", 1_000)
    async with served(ask) as connect:
        reader, bystander = await connect(), await connect()
        with s3.rule("hold"):
            answers = await reader.fetch(("orders", 0), ("other", 0))
            assert (answers["orders"].error_code, len(answers["orders"].records)) == (0, 0)
            assert answers["other"].records
            # The read is still held, and all else goes on.
            assert s3.struck
            assert sorted(await bystander.topics()) == ["orders", "other"]
            assert (await bystander.fetch(("orders", local)))["orders"].records
            await put(ask, partition, 1)
        answer = await reader.until_answered("orders", 0)
        assert answer.records


async def test_what_the_bucket_gives_goes_out_though_the_client_would_wait_for_more(ask: Asking) -> None:
    await moved(ask)
    async with served(ask) as connect:
        client = await connect()
        async with asyncio.timeout(240):
            while not (await client.fetch(("orders", 0), min_bytes=1 << 20))["orders"].records:
                pass


async def test_readers_of_one_place_are_one_read_while_the_log_grows(ask: Asking) -> None:
    partition = await moved(ask)
    before = partition.reader.plan(0, 1_000)
    await put(ask, partition, 1)
    after = partition.reader.plan(0, 1_000)
    assert before is not None
    assert after is not None
    assert before.key == after.key


async def test_a_batch_that_is_missing_in_the_bucket_leaves_the_first_place_to_the_next_topic(
    ask: Asking, s3: S3Server, bucket: str
) -> None:
    await moved(ask)
    for key in s3.objects(bucket):
        s3.delete(bucket, key)
    await moved(ask, topic="others")
    async with served(ask) as connect:
        client = await connect()
        async with asyncio.timeout(240):
            answers: dict[str, Any] = {}
            while not (answers and answers["orders"].error_code):
                answers = await client.fetch(("orders", 0), ("others", 0), each_bytes=1)
        assert answers["others"].error_code == 0
        assert answers["others"].records


async def test_a_bucket_that_is_away_is_a_storage_error_for_its_range_and_is_said_once(
    ask: Asking, s3: S3Server, caplog: pytest.LogCaptureFixture
) -> None:
    partition = await moved(ask)
    local = partition.local_start_offset
    caplog.set_level("INFO", "headrace")
    async with served(ask) as connect:
        client = await connect()
        with s3.rule("refuse"):
            for _ in range(2):
                answer = await client.until_answered("orders", 0)
                assert answer.error_code == ErrorCode.KAFKA_STORAGE_ERROR
            assert (await client.until_answered("orders", local)).records
            old = await client.offset_at("orders", partition.log.archive.entries[0].max_timestamp)
            assert old.error_code == ErrorCode.KAFKA_STORAGE_ERROR
            newest = partition.log.segments[-1].index.max_timestamp
            assert (await client.offset_at("orders", newest + 1)).error_code == 0
        assert (await client.until_answered("orders", 0)).records
        assert (await client.offset_at("orders", 0)).offset == 0
    (said,) = errors(caplog)
    assert "HR-LOG-ARCHIVE" in said
    assert "s3://" in said
    assert "hint: check that the endpoint answers" in said
    assert caplog.text.count("the archive can be read again") == 1
    assert all(secret not in caplog.text for secret in list(CREDENTIALS.values())[:2])


async def test_a_look_for_keys_asks_a_bucket_that_hangs_once(
    ask: Asking, s3: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keyed, "_ARCHIVE_WAIT_S", 0.2)
    partition = await archived(ask, 0)
    for _ in range(30):
        accepted = partition.append(build_batch([(None, bytes(20), ())], timestamp_ms=1_000), 1_000, 1_000)
        assert accepted.durable is not None
        await accepted.durable
    await ask.broker.archiver.run()
    assert len(partition.log.archive.entries) > 2
    struck = s3.struck
    with s3.rule("hold"):
        assert not await keyed.holds_keys([partition], ask.broker.limits.records, ask.broker.walker)
        assert s3.struck == struck + 1


async def test_a_topic_that_is_deleted_while_the_bucket_is_away_leaves_it_later(
    start: Starting, ask: Asking, s3: S3Server, bucket: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    await moved(ask)
    assert s3.objects(bucket)
    topics = tmp_path / "data" / "topics"
    with s3.rule("refuse"):
        assert await delete(ask, "orders") == 0
        assert not list(topics.rglob("*.log"))
        # A start does not forget it either.
        ask = await start(archive_bucket=s3.address(bucket))
        await ask.broker.archiver.run()
        assert any("still in the archive" in said for said in errors(caplog))
    assert s3.objects(bucket)
    await ask.broker.archiver.run()
    assert s3.objects(bucket) == {}
    assert list(topics.iterdir()) == []


async def test_retention_that_takes_over_from_the_archive_empties_the_bucket(
    ask: Asking, s3: S3Server, bucket: str
) -> None:
    partition = await moved(ask)
    assert s3.objects(bucket)
    partition.set_config(replace(partition.log.config, is_archived=False, retention_bytes=0))
    await ask.broker.trim()
    assert partition.start_offset > 0
    await ask.broker.archiver.run()
    assert s3.objects(bucket) == {}


async def test_a_stop_does_not_wait_for_a_bucket_that_hangs_and_nothing_is_decided_behind_it(
    start: Starting, ask: Asking, s3: S3Server, bucket: str
) -> None:
    partition = await archived(ask, 30)
    everything = readable(partition)
    struck = s3.struck
    with s3.rule("hold", "PUT"):
        moving = asyncio.create_task(ask.broker.archiver.run())
        async with asyncio.timeout(240):
            while s3.struck == struck:
                await asyncio.sleep(0.01)
        # It stops the other one first.
        ask = await start(archive_bucket=s3.address(bucket))
        await moving
    again = ask.broker.partition("orders", 0)
    assert again is not None
    assert again.log.archive.entries == []
    assert readable(again) == everything
    await ask.broker.archiver.run()
    assert again.log.archive.entries
    assert await readable_now(again) == everything
    assert len(s3.objects(bucket)) == 2 * len(again.log.archive.entries)


async def readable_now(partition: Partition) -> list[int]:
    """As ``readable``, off the event loop, since a bucket is read."""
    return await asyncio.to_thread(readable, partition)


async def test_a_topic_is_deleted_in_the_midst_of_a_move_that_hangs(
    ask: Asking, s3: S3Server, bucket: str
) -> None:
    await archived(ask, 30)
    struck = s3.struck
    with s3.rule("hold", "PUT"):
        moving = asyncio.create_task(ask.broker.archiver.run())
        async with asyncio.timeout(240):
            while s3.struck == struck:
                await asyncio.sleep(0.01)
        assert await delete(ask, "orders") == 0
        await moving
    async with asyncio.timeout(240):
        while ask.broker.partitions.deleted.archived:
            await ask.broker.archiver.run()
            await asyncio.sleep(0.01)
    assert s3.objects(bucket) == {}


async def test_a_start_with_a_bucket_that_does_not_exist_says_so_and_serves(
    start: Starting, s3: S3Server, caplog: pytest.LogCaptureFixture
) -> None:
    ask = await start(archive_bucket=s3.address("no-such-bucket"))
    await ask.broker.archiver.check()
    said = errors(caplog)[0]
    assert "there is no bucket no-such-bucket" in said
    assert "HR-LOG-ARCHIVE" in said
    assert "hint: check that the endpoint answers, that the bucket exists" in said
    await ask.create("orders")
    await ask.append("orders", 1_000)
