"""Records of the archive found by their time: which threads read and unpack them, and what is found."""

from __future__ import annotations

import struct
import threading
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from headrace.broker.archive_reads import ArchiveReads, ReadIsLate
from headrace.broker.partition import Partition
from headrace.files import SystemFiles
from headrace.log import archived_segment, times
from headrace.records import CODEC_NAMES, RecordLimits, build_batch, read_header
from headrace.records.place import seal
from tests.unit.log.archives import InFolder, Place, archive_now
from tests.unit.log.conftest import append

from .desk import Asking

Starting = Callable[..., Awaitable[Asking]]

NOW_MS = 1_700_000_000_000
WAIT_S = 240.0
ZSTD = CODEC_NAMES.index("zstd")
MAX_TIMESTAMP_AT = 35


@dataclass
class Threads:
    """Names of those that read archived bytes, and of those that unpack batches."""

    reading: set[str] = field(default_factory=set)
    unpacking: set[str] = field(default_factory=set)


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch) -> Threads:
    found = Threads()
    pread, read_stored = archived_segment._Translated.pread, times.read_stored

    def read(self: archived_segment._Translated, size: int, position: int) -> bytes:
        found.reading.add(threading.current_thread().name)
        return pread(self, size, position)

    def unpack(batch: bytes, limits: RecordLimits) -> Iterator[tuple[int, int]]:
        found.unpacking.add(threading.current_thread().name)
        return read_stored(batch, limits)

    monkeypatch.setattr(archived_segment._Translated, "pread", read)
    monkeypatch.setattr(times, "read_stored", unpack)
    return found


async def falling(start: Starting, folder: Path, *, codec: int) -> tuple[Asking, Partition]:
    """A topic whose batches have ever smaller timestamps, the first of them in the archive."""
    folder.mkdir()
    ask = await start(archive_dir=folder)
    await ask.create(
        "orders", internal_segment_bytes="400", retention_bytes="900", headrace_archive_enable="true"
    )
    partition = ask.broker.partition("orders", 0)
    assert partition is not None
    for number in range(30):
        batch = build_batch([(b"key", bytes(20), ())], timestamp_ms=NOW_MS - number, codec=codec)
        accepted = partition.append(batch, NOW_MS, NOW_MS)
        assert accepted.durable is not None
        await accepted.durable
    await ask.broker.archiver.run()
    assert partition.local_start_offset > 2
    return ask, partition


async def test_compressed_batches_are_read_by_the_archives_threads_and_unpacked_by_the_executor(
    start: Starting, tmp_path: Path, threads: Threads
) -> None:
    ask, partition = await falling(start, tmp_path / "archive", codec=ZSTD)
    walker = ask.broker.walker
    threads.reading.clear()
    assert await partition.offset_for_time(NOW_MS - 3, walker, WAIT_S) == (0, NOW_MS)
    assert await partition.offset_of_max_timestamp(walker, WAIT_S) == (0, NOW_MS)
    assert threads.reading == {"headrace-archive-read"}
    assert threads.unpacking == {"headrace-walk_0"}


async def test_short_batches_of_the_archive_are_not_unpacked_by_the_event_loop(
    start: Starting, tmp_path: Path, threads: Threads
) -> None:
    ask, partition = await falling(start, tmp_path / "archive", codec=0)
    assert await partition.offset_for_time(NOW_MS - 3, ask.broker.walker, WAIT_S) == (0, NOW_MS)
    assert threads.unpacking == {"headrace-archive-read"}


async def test_an_archived_record_below_the_start_is_not_the_latest(start: Starting, tmp_path: Path) -> None:
    ask, partition = await falling(start, tmp_path / "archive", codec=ZSTD)
    await partition.delete_before(1)
    assert partition.log.archive.entries[0].base_offset == 0
    assert await partition.offset_of_max_timestamp(ask.broker.walker, WAIT_S) == (1, NOW_MS - 1)
    assert await partition.offset_for_time(NOW_MS, ask.broker.walker, WAIT_S) is None


async def test_a_look_up_that_is_out_of_time_starts_no_read_of_the_archive(
    start: Starting, tmp_path: Path
) -> None:
    ask, partition = await falling(start, tmp_path / "archive", codec=ZSTD)
    walker, archive_reads = ask.broker.walker, ask.broker.partitions.archive_reads
    for look_up in (
        partition.offset_for_time(NOW_MS - 3, walker, 0.0),
        partition.offset_of_max_timestamp(walker, 0.0),
    ):
        with pytest.raises(ReadIsLate):
            await look_up
        assert archive_reads._running == {}


class Before(ThreadPoolExecutor):
    """Calls a function, once, before it begins its first work."""

    def __init__(self, call: Callable[[], object]) -> None:
        super().__init__(1)
        self._calls = [call]

    def submit(self, fn: Callable[..., Any], /, *args: Any, **keywords: Any) -> Future[Any]:
        while self._calls:
            self._calls.pop()()
        return super().submit(fn, *args, **keywords)


async def test_a_look_up_goes_on_in_the_archive_when_its_segment_moves_meanwhile(
    tmp_path: Path, threads: Threads
) -> None:
    log = Place(tmp_path, SystemFiles(), InFolder(tmp_path / "archive", SystemFiles())).open()
    # Its header has a time that none of its records has, so that the search goes on behind it.
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

    nobody: Any = None
    with Before(move) as executor:
        partition = Partition(log, nobody, RecordLimits(), ArchiveReads())
        assert await partition.offset_for_time(NOW_MS + 100, executor, WAIT_S) == (1, NOW_MS + 100)
    assert log.local_start_offset > 1
    assert threads.reading == {"headrace-archive-read"}
