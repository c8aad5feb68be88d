"""The archive as the broker runs it: enabled by the broker, used by a topic, removed with the topic."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from headrace.broker.storage.offline_partition import OfflinePartition
from headrace.broker.storage.partition import Partition
from headrace.errors import ArchiveUnavailable
from headrace.files import SystemFiles
from headrace.records import build_batch
from headrace.wire import Api
from headrace.wire import messages as m
from headrace.wire.codes import ErrorCode
from tests.support.s3 import S3Server

from .broker_calls import BrokerCalls

StartBroker = Callable[..., Awaitable[BrokerCalls]]


async def create_archived_topic(call: BrokerCalls, count: int = 60, topic: str = "orders") -> Partition:
    await call.create(
        topic,
        internal_segment_bytes="400",
        retention_bytes="900",
        headrace_archive_enable="true",
    )
    partition = call.broker.partition(topic, 0)
    assert partition is not None
    await append_records(call, partition, count)
    return partition


async def append_records(call: BrokerCalls, partition: Partition, count: int) -> None:
    now_ms = call.broker.clock.now_ms()
    for number in range(count):
        batch = build_batch([(b"key", b"%020d" % number, ())], timestamp_ms=now_ms)
        accepted = partition.append(batch, now_ms, now_ms)
        if accepted.durable is not None:
            await accepted.durable


def batch_offsets(partition: Partition) -> list[int]:
    """Read the whole partition in small pieces, and return the first offset of each piece."""
    found, offset = [], partition.start_offset
    while offset < partition.high_watermark:
        piece = partition.reader.read(offset, 300)
        found.append(offset)
        offset = piece.next_offset
    return found


@pytest.fixture(params=["folder", "bucket"])
def archive(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[dict[str, Any], Callable[[], list[str]]]:
    """Settings of a broker with an archive, and a function that lists the archived log files."""
    if request.param == "folder":
        folder = tmp_path / "archive"
        folder.mkdir()
        return {"archive_dir": folder}, lambda: [str(path) for path in folder.rglob("*.log")]
    s3: S3Server = request.getfixturevalue("s3")
    bucket = s3.fresh_bucket()
    settings = {"archive_bucket": s3.address(bucket, "some/prefix")}
    return settings, lambda: [key for key in s3.objects(bucket) if ".log/" in key]


async def test_old_segments_move_stay_readable_and_are_deleted_with_the_topic(
    start: StartBroker, archive: tuple[dict[str, Any], Callable[[], list[str]]]
) -> None:
    settings, logs = archive
    call = await start(**settings)
    partition = await create_archived_topic(call)
    before = batch_offsets(partition)
    size = partition.size_bytes
    await call.broker.archiver.run()
    assert partition.size_bytes < size / 2
    assert (partition.start_offset, batch_offsets(partition)) == (0, before)
    local = partition.local_start_offset
    assert local > 0
    for timestamp, offset in ((-2, 0), (-4, local)):
        request = m.ListOffsetsRequest
        response = await call(
            Api.LIST_OFFSETS,
            topics=[
                request.ListOffsetsTopic(
                    name="orders",
                    partitions=[request.ListOffsetsPartition(partition_index=0, timestamp=timestamp)],
                )
            ],
        )
        assert response.topics[0].partitions[0].offset == offset
    call = await start(**settings)
    restarted = call.broker.partition("orders", 0)
    assert restarted is not None
    assert batch_offsets(restarted) == before
    assert len(logs()) == len(restarted.log.archive.entries) > 2
    state = m.DeleteTopicsRequest.DeleteTopicState(name="orders", topic_id=bytes(16))
    assert (await call(Api.DELETE_TOPICS, topics=[state])).responses[0].error_code == 0
    await call.broker.archiver.remove_deleted()
    assert logs() == []


async def test_an_offline_partition_does_not_stop_the_archiver(
    start: StartBroker, archive: tuple[dict[str, Any], Callable[[], list[str]]]
) -> None:
    settings, logs = archive
    call = await start(**settings)
    await create_archived_topic(call)
    await create_archived_topic(call, topic="gone")
    await call.create("damaged")
    call.broker.partitions._by_topic["damaged"][0] = OfflinePartition("the disk failed", 0)
    await call.broker.archiver.run()
    archived = logs()
    state = m.DeleteTopicsRequest.DeleteTopicState(name="gone", topic_id=bytes(16))
    assert (await call(Api.DELETE_TOPICS, topics=[state])).responses[0].error_code == 0
    await call.broker.archiver.run()
    assert 0 < len(logs()) < len(archived)
    assert call.broker.archiver.counts.failures == 0


async def test_a_deleted_topic_is_removed_from_the_archive_after_its_local_files(
    start: StartBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    folder, topics = tmp_path / "archive", tmp_path / "data" / "topics"
    folder.mkdir()
    call = await start(archive_dir=folder)
    await create_archived_topic(call, 20)
    await call.broker.archiver.run()
    assert list(folder.rglob("*.log"))
    removing, may_continue = threading.Event(), threading.Event()
    remove_dir = SystemFiles.remove_dir

    def wait_to_remove(self: SystemFiles, path: Path) -> None:
        if path.parent.parent == topics:
            removing.set()
            may_continue.wait(240)
        remove_dir(self, path)

    monkeypatch.setattr(SystemFiles, "remove_dir", wait_to_remove)
    state = m.DeleteTopicsRequest.DeleteTopicState(name="orders", topic_id=bytes(16))
    deleting = asyncio.create_task(call(Api.DELETE_TOPICS, topics=[state]))
    assert await asyncio.to_thread(removing.wait, 240)
    await call.broker.archiver.run()
    may_continue.set()
    assert (await deleting).responses[0].error_code == 0
    await call.broker.archiver.remove_deleted()
    assert [record.getMessage() for record in caplog.records if record.levelname == "ERROR"] == []
    assert list(topics.iterdir()) == []
    assert list(folder.rglob("*.log")) == []


async def test_a_broker_without_its_archive_serves_local_records_and_deletes_nothing(
    start: StartBroker, tmp_path: Path
) -> None:
    archive = tmp_path / "archive"
    archive.mkdir()
    call = await start(archive_dir=archive)
    partition = await create_archived_topic(call)
    await call.broker.archiver.run()
    archive.rename(tmp_path / "away")
    call = await start(archive_dir=archive)
    partition = call.broker.partition("orders", 0)  # type: ignore[assignment]
    await append_records(call, partition, 40)
    size = partition.size_bytes
    await call.broker.archiver.run()
    assert partition.size_bytes == size
    assert partition.reader.read(partition.local_start_offset, 300).next_offset > 0
    try:
        partition.reader.read(0, 300)
    except ArchiveUnavailable as error:
        assert str(archive) in str(error)  # noqa: PT017
    else:
        raise AssertionError("the archive is away")
    (tmp_path / "away").rename(archive)
    await call.broker.archiver.run()
    assert partition.size_bytes < size
    assert batch_offsets(partition)[0] == 0


async def create_with_error(call: BrokerCalls, **configs: str) -> tuple[int, str]:
    request = m.CreateTopicsRequest
    response = await call(
        Api.CREATE_TOPICS,
        topics=[
            request.CreatableTopic(
                name="t",
                num_partitions=1,
                replication_factor=1,
                configs=[
                    request.CreatableTopicConfig(name=key.replace("_", "."), value=value)
                    for key, value in configs.items()
                ],
            )
        ],
    )
    return response.topics[0].error_code, response.topics[0].error_message or ""


async def test_a_topic_is_archived_only_with_an_archive_and_without_compaction(
    start: StartBroker, tmp_path: Path
) -> None:
    call = await start()
    code, message = await create_with_error(call, headrace_archive_enable="true")
    assert code == ErrorCode.INVALID_CONFIG
    assert "has no archive" in message
    call = await start(archive_dir=tmp_path)
    code, message = await create_with_error(
        call, headrace_archive_enable="true", cleanup_policy="compact,delete"
    )
    assert code == ErrorCode.INVALID_CONFIG
    assert "compacted" in message
    code, _ = await create_with_error(call, headrace_archive_dir="/tmp/x")
    assert code == ErrorCode.INVALID_CONFIG
