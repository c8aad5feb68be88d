"""A bucket that hangs, refuses requests or does not exist, as the broker's clients and its operator see it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from headrace.broker.handlers import topics as topic_handlers
from headrace.broker.net.server import Server
from headrace.broker.storage.partition import Partition
from headrace.records import build_batch
from headrace.wire import Api, decode_response, encode_request
from headrace.wire import messages as m
from headrace.wire.codes import ErrorCode
from tests.support.s3 import CREDENTIALS, S3Server

from .broker_calls import BrokerCalls
from .test_archiver import append_records, batch_offsets, create_archived_topic

StartBroker = Callable[..., Awaitable[BrokerCalls]]
FETCH_VERSION, TIMES_VERSION, METADATA_VERSION = 11, 7, 12


class Client:
    """One connection that sends and receives encoded requests and responses."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    async def call(self, api: Api, version: int, message: Any) -> Any:
        self._writer.write(encode_request(api, version, 7, "tests", message))
        size = int.from_bytes(await self._reader.readexactly(4), "big")
        return decode_response(api, version, await self._reader.readexactly(size))[1]

    async def fetch(
        self, *topic_offsets: tuple[str, int], min_bytes: int = 1, each_bytes: int = 1 << 20
    ) -> dict[str, Any]:
        """Fetch partition 0 of each topic from the offset on; return the partition response by topic."""
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
                for name, offset in topic_offsets
            ],
        )
        response = await self.call(Api.FETCH, FETCH_VERSION, message)
        return {topic.topic: topic.partitions[0] for topic in response.responses}

    async def fetch_until_response(self, name: str, offset: int) -> Any:
        """Fetch until the response has records or an error, as clients do with a slow archive."""
        async with asyncio.timeout(240):
            while True:
                answer = (await self.fetch((name, offset)))[name]
                if answer.error_code or answer.records:
                    return answer

    async def offset_at(self, name: str, timestamp_ms: int) -> Any:
        request = m.ListOffsetsRequest
        partition = request.ListOffsetsPartition(partition_index=0, timestamp=timestamp_ms)
        topic = request.ListOffsetsTopic(name=name, partitions=[partition])
        response = await self.call(Api.LIST_OFFSETS, TIMES_VERSION, request(topics=[topic]))
        return response.topics[0].partitions[0]

    async def topics(self) -> list[str]:
        response = await self.call(Api.METADATA, METADATA_VERSION, m.MetadataRequest(topics=None))
        return [topic.name for topic in response.topics]

    def close(self) -> None:
        self._writer.close()


@asynccontextmanager
async def serve(call: BrokerCalls) -> AsyncIterator[Callable[[], Awaitable[Client]]]:
    """Listen on a socket, and yield a function that opens connections to the broker."""
    server = Server(call.broker)
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
async def call(start: StartBroker, s3: S3Server, bucket: str) -> BrokerCalls:
    return await start(archive_bucket=s3.address(bucket))


async def archive_topic(call: BrokerCalls, count: int = 30, topic: str = "orders") -> Partition:
    """Create a topic and move its first segments to the bucket."""
    partition = await create_archived_topic(call, count, topic)
    await call.broker.archiver.run()
    assert partition.local_start_offset > 0
    return partition


async def delete(call: BrokerCalls, name: str) -> int:
    state = m.DeleteTopicsRequest.DeleteTopicState(name=name, topic_id=bytes(16))
    response = await call(Api.DELETE_TOPICS, topics=[state])
    return int(response.responses[0].error_code)


def errors(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]


async def test_a_hanging_bucket_delays_only_its_own_readers(call: BrokerCalls, s3: S3Server) -> None:
    partition = await archive_topic(call)
    local = partition.local_start_offset
    await call.create("other")
    await call.append("other", 1_000)
    async with serve(call) as connect:
        reader, other_client = await connect(), await connect()
        with s3.rule("hold"):
            responses = await reader.fetch(("orders", 0), ("other", 0))
            assert (responses["orders"].error_code, len(responses["orders"].records)) == (0, 0)
            assert responses["other"].records
            # The S3 server still holds the read; all other requests are served.
            assert s3.injected_faults
            assert sorted(await other_client.topics()) == ["orders", "other"]
            assert (await other_client.fetch(("orders", local)))["orders"].records
            await append_records(call, partition, 1)
        answer = await reader.fetch_until_response("orders", 0)
        assert answer.records


async def test_records_from_the_bucket_are_sent_before_min_bytes_is_reached(
    call: BrokerCalls,
) -> None:
    await archive_topic(call)
    async with serve(call) as connect:
        client = await connect()
        async with asyncio.timeout(240):
            while not (await client.fetch(("orders", 0), min_bytes=1 << 20))["orders"].records:
                pass


async def test_readers_of_the_same_bytes_share_one_read_while_the_log_grows(call: BrokerCalls) -> None:
    partition = await archive_topic(call)
    before = partition.reader.plan(0, 1_000)
    await append_records(call, partition, 1)
    after = partition.reader.plan(0, 1_000)
    assert before is not None
    assert after is not None
    assert before.key == after.key


async def test_a_batch_missing_in_the_bucket_does_not_block_the_next_topic_of_a_fetch(
    call: BrokerCalls, s3: S3Server, bucket: str
) -> None:
    await archive_topic(call)
    for key in s3.objects(bucket):
        s3.delete(bucket, key)
    await archive_topic(call, topic="others")
    async with serve(call) as connect:
        client = await connect()
        async with asyncio.timeout(240):
            responses: dict[str, Any] = {}
            while not (responses and responses["orders"].error_code):
                responses = await client.fetch(("orders", 0), ("others", 0), each_bytes=1)
        assert responses["others"].error_code == 0
        assert responses["others"].records


async def test_an_unavailable_bucket_is_a_storage_error_for_its_range_and_is_logged_once(
    call: BrokerCalls, s3: S3Server, caplog: pytest.LogCaptureFixture
) -> None:
    partition = await archive_topic(call)
    local = partition.local_start_offset
    caplog.set_level("INFO", "headrace")
    async with serve(call) as connect:
        client = await connect()
        with s3.rule("refuse"):
            for _ in range(2):
                answer = await client.fetch_until_response("orders", 0)
                assert answer.error_code == ErrorCode.KAFKA_STORAGE_ERROR
            assert (await client.fetch_until_response("orders", local)).records
            old = await client.offset_at("orders", partition.log.archive.entries[0].max_timestamp)
            assert old.error_code == ErrorCode.KAFKA_STORAGE_ERROR
            newest = partition.log.segments[-1].index.max_timestamp
            assert (await client.offset_at("orders", newest + 1)).error_code == 0
        assert (await client.fetch_until_response("orders", 0)).records
        assert (await client.offset_at("orders", 0)).offset == 0
    (error,) = errors(caplog)
    assert "HR-LOG-ARCHIVE" in error
    assert "s3://" in error
    assert "hint: check that the endpoint responds" in error
    assert caplog.text.count("the archive is available again") == 1
    assert all(secret not in caplog.text for secret in list(CREDENTIALS.values())[:2])


async def test_a_search_for_keys_reads_a_hanging_bucket_once(
    call: BrokerCalls, s3: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topic_handlers, "_SAMPLE_WAIT_S", 0.2)
    partition = await create_archived_topic(call, 0)
    for _ in range(30):
        accepted = partition.append(build_batch([(None, bytes(20), ())], timestamp_ms=1_000), 1_000, 1_000)
        assert accepted.durable is not None
        await accepted.durable
    await call.broker.archiver.run()
    assert len(partition.log.archive.entries) > 2
    faults_before = s3.injected_faults
    with s3.rule("hold"):
        assert not await topic_handlers.has_keyed_records(
            [partition], call.broker.limits.records, call.broker.batch_executor
        )
        assert s3.injected_faults == faults_before + 1


async def test_a_topic_deleted_while_the_bucket_is_unavailable_is_removed_from_it_later(
    start: StartBroker,
    call: BrokerCalls,
    s3: S3Server,
    bucket: str,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    await archive_topic(call)
    assert s3.objects(bucket)
    topics = tmp_path / "data" / "topics"
    with s3.rule("refuse"):
        assert await delete(call, "orders") == 0
        assert not list(topics.rglob("*.log"))
        # A restart remembers the deleted topic too.
        call = await start(archive_bucket=s3.address(bucket))
        await call.broker.archiver.run()
        assert any("deleted topics from the archive" in error for error in errors(caplog))
    assert s3.objects(bucket)
    await call.broker.archiver.run()
    assert s3.objects(bucket) == {}
    assert list(topics.iterdir()) == []


async def test_retention_of_a_topic_without_archiving_deletes_its_archived_segments(
    call: BrokerCalls, s3: S3Server, bucket: str
) -> None:
    partition = await archive_topic(call)
    assert s3.objects(bucket)
    partition.set_config(replace(partition.log.config, is_archived=False, retention_bytes=0))
    await call.broker.trim()
    assert partition.start_offset > 0
    await call.broker.archiver.run()
    assert s3.objects(bucket) == {}


async def test_a_stop_does_not_wait_for_a_hanging_bucket_and_the_log_is_intact_afterwards(
    start: StartBroker, call: BrokerCalls, s3: S3Server, bucket: str
) -> None:
    partition = await create_archived_topic(call, 30)
    offsets_before = batch_offsets(partition)
    faults_before = s3.injected_faults
    with s3.rule("hold", "PUT"):
        moving = asyncio.create_task(call.broker.archiver.run())
        async with asyncio.timeout(240):
            while s3.injected_faults == faults_before:
                await asyncio.sleep(0.01)
        # ``start`` stops the first broker.
        call = await start(archive_bucket=s3.address(bucket))
        await moving
    restarted = call.broker.partition("orders", 0)
    assert restarted is not None
    assert restarted.log.archive.entries == []
    assert batch_offsets(restarted) == offsets_before
    await call.broker.archiver.run()
    assert restarted.log.archive.entries
    assert await batch_offsets_in_thread(restarted) == offsets_before
    assert len(s3.objects(bucket)) == 2 * len(restarted.log.archive.entries)


async def batch_offsets_in_thread(partition: Partition) -> list[int]:
    """Like ``batch_offsets``, but in a thread, because it reads from the bucket."""
    return await asyncio.to_thread(batch_offsets, partition)


async def test_a_topic_can_be_deleted_while_the_archiving_of_its_segments_hangs(
    call: BrokerCalls, s3: S3Server, bucket: str
) -> None:
    await create_archived_topic(call, 30)
    faults_before = s3.injected_faults
    with s3.rule("hold", "PUT"):
        moving = asyncio.create_task(call.broker.archiver.run())
        async with asyncio.timeout(240):
            while s3.injected_faults == faults_before:
                await asyncio.sleep(0.01)
        assert await delete(call, "orders") == 0
        await moving
    async with asyncio.timeout(240):
        while call.broker.partitions.deleted.archived:
            await call.broker.archiver.run()
            await asyncio.sleep(0.01)
    assert s3.objects(bucket) == {}


async def test_a_start_with_a_missing_bucket_logs_an_error_and_serves(
    start: StartBroker, s3: S3Server, caplog: pytest.LogCaptureFixture
) -> None:
    call = await start(archive_bucket=s3.address("no-such-bucket"))
    await call.broker.archiver.check()
    error = errors(caplog)[0]
    assert "bucket no-such-bucket does not exist" in error
    assert "HR-LOG-ARCHIVE" in error
    assert "hint: check that the endpoint responds, that the bucket exists" in error
    await call.create("orders")
    await call.append("orders", 1_000)
