"""The archive as the broker runs it: allowed by the broker, asked for by a topic, gone with the topic."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from headrace.broker.partition import Partition
from headrace.errors import ArchiveUnavailable
from headrace.files import SystemFiles
from headrace.records import build_batch
from headrace.wire import Api
from headrace.wire import messages as m
from headrace.wire.codes import ErrorCode
from tests.support.s3 import S3Server

from .desk import Asking

Starting = Callable[..., Awaitable[Asking]]


async def archived(ask: Asking, count: int = 60, topic: str = "orders") -> Partition:
    await ask.create(
        topic,
        internal_segment_bytes="400",
        retention_bytes="900",
        headrace_archive_enable="true",
    )
    partition = ask.broker.partition(topic, 0)
    assert partition is not None
    await put(ask, partition, count)
    return partition


async def put(ask: Asking, partition: Partition, count: int) -> None:
    now_ms = ask.broker.clock.now_ms()
    for number in range(count):
        batch = build_batch([(b"key", b"%020d" % number, ())], timestamp_ms=now_ms)
        accepted = partition.append(batch, now_ms, now_ms)
        if accepted.durable is not None:
            await accepted.durable


def readable(partition: Partition) -> list[int]:
    """The first offset of each piece, from the first to the last."""
    found, offset = [], partition.start_offset
    while offset < partition.high_watermark:
        piece = partition.reader.read(offset, 300)
        found.append(offset)
        offset = piece.next_offset
    return found


@pytest.fixture(params=["folder", "bucket"])
def archive(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[dict[str, Any], Callable[[], list[str]]]:
    """What the broker is told, and what the archive holds of logs."""
    if request.param == "folder":
        folder = tmp_path / "archive"
        folder.mkdir()
        return {"archive_dir": folder}, lambda: [str(path) for path in folder.rglob("*.log")]
    s3: S3Server = request.getfixturevalue("s3")
    bucket = s3.fresh_bucket()
    settings = {"archive_bucket": s3.address(bucket, "some/prefix")}
    return settings, lambda: [key for key in s3.objects(bucket) if ".log/" in key]


async def test_old_segments_move_and_stay_readable_and_go_with_the_topic(
    start: Starting, archive: tuple[dict[str, Any], Callable[[], list[str]]]
) -> None:
    settings, logs = archive
    ask = await start(**settings)
    partition = await archived(ask)
    before = readable(partition)
    size = partition.size_bytes
    await ask.broker.archiver.run()
    assert partition.size_bytes < size / 2
    assert (partition.start_offset, readable(partition)) == (0, before)
    local = partition.local_start_offset
    assert local > 0
    for timestamp, offset in ((-2, 0), (-4, local)):
        request = m.ListOffsetsRequest
        response = await ask(
            Api.LIST_OFFSETS,
            topics=[
                request.ListOffsetsTopic(
                    name="orders",
                    partitions=[request.ListOffsetsPartition(partition_index=0, timestamp=timestamp)],
                )
            ],
        )
        assert response.topics[0].partitions[0].offset == offset
    ask = await start(**settings)
    again = ask.broker.partition("orders", 0)
    assert again is not None
    assert readable(again) == before
    assert len(logs()) == len(again.log.archive.entries) > 2
    state = m.DeleteTopicsRequest.DeleteTopicState(name="orders", topic_id=bytes(16))
    assert (await ask(Api.DELETE_TOPICS, topics=[state])).responses[0].error_code == 0
    await ask.broker.archiver.remove_deleted()
    assert logs() == []


async def test_a_deleted_topic_leaves_the_archive_once_its_own_files_are_gone(
    start: Starting, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    folder, topics = tmp_path / "archive", tmp_path / "data" / "topics"
    folder.mkdir()
    ask = await start(archive_dir=folder)
    await archived(ask, 20)
    await ask.broker.archiver.run()
    assert list(folder.rglob("*.log"))
    removing, go_on = threading.Event(), threading.Event()
    remove_dir = SystemFiles.remove_dir

    def held(self: SystemFiles, path: Path) -> None:
        if path.parent.parent == topics:
            removing.set()
            go_on.wait(240)
        remove_dir(self, path)

    monkeypatch.setattr(SystemFiles, "remove_dir", held)
    state = m.DeleteTopicsRequest.DeleteTopicState(name="orders", topic_id=bytes(16))
    deleting = asyncio.create_task(ask(Api.DELETE_TOPICS, topics=[state]))
    assert await asyncio.to_thread(removing.wait, 240)
    await ask.broker.archiver.run()
    go_on.set()
    assert (await deleting).responses[0].error_code == 0
    await ask.broker.archiver.remove_deleted()
    assert [record.getMessage() for record in caplog.records if record.levelname == "ERROR"] == []
    assert list(topics.iterdir()) == []
    assert list(folder.rglob("*.log")) == []


async def test_a_broker_without_its_archive_serves_all_else_and_deletes_nothing(
    start: Starting, tmp_path: Path
) -> None:
    archive = tmp_path / "archive"
    archive.mkdir()
    ask = await start(archive_dir=archive)
    partition = await archived(ask)
    await ask.broker.archiver.run()
    archive.rename(tmp_path / "away")
    ask = await start(archive_dir=archive)
    partition = ask.broker.partition("orders", 0)  # type: ignore[assignment]
    await put(ask, partition, 40)
    size = partition.size_bytes
    await ask.broker.archiver.run()
    assert partition.size_bytes == size
    assert partition.reader.read(partition.local_start_offset, 300).next_offset > 0
    try:
        partition.reader.read(0, 300)
    except ArchiveUnavailable as error:
        assert str(archive) in str(error)  # noqa: PT017
    else:
        raise AssertionError("the archive is away")
    (tmp_path / "away").rename(archive)
    await ask.broker.archiver.run()
    assert partition.size_bytes < size
    assert readable(partition)[0] == 0


async def refused(ask: Asking, **configs: str) -> tuple[int, str]:
    request = m.CreateTopicsRequest
    response = await ask(
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


async def test_a_topic_cannot_be_archived_where_that_would_promise_too_much(
    start: Starting, tmp_path: Path
) -> None:
    ask = await start()
    code, message = await refused(ask, headrace_archive_enable="true")
    assert code == ErrorCode.INVALID_CONFIG
    assert "without an archive" in message
    ask = await start(archive_dir=tmp_path)
    code, message = await refused(ask, headrace_archive_enable="true", cleanup_policy="compact,delete")
    assert code == ErrorCode.INVALID_CONFIG
    assert "compacted" in message
    code, _ = await refused(ask, headrace_archive_dir="/tmp/x")
    assert code == ErrorCode.INVALID_CONFIG
