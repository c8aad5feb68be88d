"""Lookups by time in the archive: the threads that read and decompress, and the results."""

from __future__ import annotations

import struct
import threading
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from headrace.broker.storage.archive_access import ArchiveReads, ReadIsLate
from headrace.broker.storage.partition import Partition
from headrace.files import SystemFiles
from headrace.log import archived_segment, times
from headrace.records import CODEC_NAMES, RecordLimits, build_batch, read_header
from headrace.records.batch import seal
from tests.unit.log.archives import ArchivedPartition, InFolder, archive_now
from tests.unit.log.conftest import append

from .broker_calls import BrokerCalls

StartBroker = Callable[..., Awaitable[BrokerCalls]]

NOW_MS = 1_700_000_000_000
WAIT_S = 240.0
ZSTD = CODEC_NAMES.index("zstd")
MAX_TIMESTAMP_AT = 35


@dataclass
class Threads:
    """Names of the threads that read archived bytes, and of the threads that decompress batches."""

    reading: set[str] = field(default_factory=set)
    unpacking: set[str] = field(default_factory=set)


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch) -> Threads:
    threads = Threads()
    pread, read_stored = archived_segment._ArchivedFile.pread, times.read_stored

    def read(self: archived_segment._ArchivedFile, size: int, position: int) -> bytes:
        threads.reading.add(threading.current_thread().name)
        return pread(self, size, position)

    def unpack(batch: bytes, limits: RecordLimits) -> Iterator[tuple[int, int]]:
        threads.unpacking.add(threading.current_thread().name)
        return read_stored(batch, limits)

    monkeypatch.setattr(archived_segment._ArchivedFile, "pread", read)
    monkeypatch.setattr(times, "read_stored", unpack)
    return threads


async def archive_decreasing_timestamps(
    start: StartBroker, folder: Path, *, codec: int
) -> tuple[BrokerCalls, Partition]:
    """Create a topic with decreasing timestamps, and archive its first batches."""
    folder.mkdir()
    call = await start(archive_dir=folder)
    await call.create(
        "orders", internal_segment_bytes="400", retention_bytes="900", headrace_archive_enable="true"
    )
    partition = call.broker.partition("orders", 0)
    assert partition is not None
    for number in range(30):
        batch = build_batch([(b"key", bytes(20), ())], timestamp_ms=NOW_MS - number, codec=codec)
        accepted = partition.append(batch, NOW_MS, NOW_MS)
        assert accepted.durable is not None
        await accepted.durable
    await call.broker.archiver.run()
    assert partition.local_start_offset > 2
    return call, partition


async def test_compressed_batches_are_read_by_the_archives_threads_and_unpacked_by_the_executor(
    start: StartBroker, tmp_path: Path, threads: Threads
) -> None:
    call, partition = await archive_decreasing_timestamps(start, tmp_path / "archive", codec=ZSTD)
    executor = call.broker.batch_executor
    threads.reading.clear()
    assert await partition.offset_for_time(NOW_MS - 3, executor, WAIT_S) == (0, NOW_MS)
    assert await partition.offset_of_max_timestamp(executor, WAIT_S) == (0, NOW_MS)
    assert threads.reading == {"headrace-archive-read"}
    assert threads.unpacking == {"headrace-batch_0"}


async def test_short_batches_of_the_archive_are_not_unpacked_by_the_event_loop(
    start: StartBroker, tmp_path: Path, threads: Threads
) -> None:
    call, partition = await archive_decreasing_timestamps(start, tmp_path / "archive", codec=0)
    assert await partition.offset_for_time(NOW_MS - 3, call.broker.batch_executor, WAIT_S) == (0, NOW_MS)
    assert threads.unpacking == {"headrace-archive-read"}


async def test_an_archived_record_below_the_start_is_not_the_latest(
    start: StartBroker, tmp_path: Path
) -> None:
    call, partition = await archive_decreasing_timestamps(start, tmp_path / "archive", codec=ZSTD)
    await partition.delete_before(1)
    assert partition.log.archive.entries[0].base_offset == 0
    assert await partition.offset_of_max_timestamp(call.broker.batch_executor, WAIT_S) == (1, NOW_MS - 1)
    assert await partition.offset_for_time(NOW_MS, call.broker.batch_executor, WAIT_S) is None


async def test_a_lookup_after_its_deadline_starts_no_read_of_the_archive(
    start: StartBroker, tmp_path: Path
) -> None:
    call, partition = await archive_decreasing_timestamps(start, tmp_path / "archive", codec=ZSTD)
    executor, archive_reads = call.broker.batch_executor, call.broker.partitions.archive_reads
    for lookup in (
        partition.offset_for_time(NOW_MS - 3, executor, 0.0),
        partition.offset_of_max_timestamp(executor, 0.0),
    ):
        with pytest.raises(ReadIsLate):
            await lookup
        assert archive_reads._running == {}


class CallBeforeFirstTask(ThreadPoolExecutor):
    """An executor that calls a function once, before its first task starts."""

    def __init__(self, call: Callable[[], object]) -> None:
        super().__init__(1)
        self._calls = [call]

    def submit(self, fn: Callable[..., Any], /, *args: Any, **keywords: Any) -> Future[Any]:
        while self._calls:
            self._calls.pop()()
        return super().submit(fn, *args, **keywords)


async def test_a_lookup_continues_in_the_archive_if_its_segment_is_archived_meanwhile(
    tmp_path: Path, threads: Threads
) -> None:
    log = ArchivedPartition(tmp_path, SystemFiles(), InFolder(tmp_path / "archive", SystemFiles())).open()
    # The header has a later timestamp than any record of the batch, so the search must continue after this batch.
    first = build_batch([(b"k", b"first", ())], timestamp_ms=NOW_MS, codec=ZSTD)
    struct.pack_into(">q", first, MAX_TIMESTAMP_AT, NOW_MS + 100)
    seal(first, 0)
    log.append(first, read_header(first), NOW_MS + 100, NOW_MS)
    for number in range(1, 40):
        append(log, b"value-%d" % number, timestamp_ms=NOW_MS + 100)
    log.sync_now()

    def move() -> None:
        assert archive_now(log) > 1
        threads.reading.clear()

    no_committer: Any = None
    with CallBeforeFirstTask(move) as executor:
        partition = Partition(log, no_committer, RecordLimits(), ArchiveReads())
        assert await partition.offset_for_time(NOW_MS + 100, executor, WAIT_S) == (1, NOW_MS + 100)
    assert log.local_start_offset > 1
    assert threads.reading == {"headrace-archive-read"}
