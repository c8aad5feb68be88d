"""One operation fails, and the process continues."""

from __future__ import annotations

import asyncio
import errno
import threading
from pathlib import Path

import pytest

from faults.disk.faulty_files import FaultyFiles
from headrace.clock import SystemClock
from headrace.errors import PartitionFenced
from headrace.log.committer import Committer
from headrace.log.config import LogConfig
from headrace.log.journal import Journal
from headrace.log.partition import PartitionLog
from headrace.log.producers import OutOfOrderSequence
from tests.unit.log.conftest import NOW_MS, append, values_from

DIRECTORY = Path("/disk/partition")
CONFIG = LogConfig(segment_bytes=400, index_interval_bytes=100)


def filled(files: FaultyFiles) -> PartitionLog:
    files.make_dir(DIRECTORY)
    files.sync_dir(DIRECTORY.parent)
    log = PartitionLog(files, DIRECTORY, config=CONFIG, now_ms=NOW_MS)
    for number in range(12):
        append(log, b"value-%d" % number)
    log.sync_now()
    return log


@pytest.mark.parametrize("kind", ["write", "sync"])
def test_a_deletion_that_is_not_durable_is_an_error_and_deletes_nothing(kind: str) -> None:
    files = FaultyFiles(1)
    log = filled(files)
    files.fail(kind, path="*/mark", error=errno.EIO)
    with pytest.raises(OSError, match="Input/output"):
        log.delete_before(9)
    assert log.start_offset == 0
    assert len(values_from(log)) == 12
    assert log.delete_before(9) == 9
    for _ in range(20):
        after = PartitionLog(files.crash(), DIRECTORY, config=CONFIG, now_ms=NOW_MS)
        assert sorted(values_from(after)) == [9, 10, 11]


def test_writes_continue_if_the_mark_cannot_be_synced() -> None:
    files = FaultyFiles(1)
    filled(files)
    files = files.restart()
    log = PartitionLog(files, DIRECTORY, config=CONFIG, now_ms=NOW_MS)
    files.fail("sync", path="*/mark", times=None)
    append(log, b"value-12")
    log.sync_now()
    assert log.fenced is None
    assert len(values_from(log)) == 13


@pytest.mark.parametrize(("kind", "path"), [("sync", "*/mark"), ("remove", "*.log")])
async def test_a_journal_continues_if_its_old_entries_cannot_be_deleted(
    kind: str, path: str, caplog: pytest.LogCaptureFixture
) -> None:
    files = FaultyFiles(1)
    files.make_dir(DIRECTORY)
    files.sync_dir(DIRECTORY.parent)
    committer = Committer()
    journal = Journal(files, DIRECTORY, SystemClock(), committer, snapshot_after_bytes=500)
    kept: list[bytes] = []
    journal.on_snapshot(lambda: list(kept))
    fault = files.fail(kind, path=path, times=None)
    for number in range(30):
        await journal.write([b"entry-%d" % number])
        kept.append(b"entry-%d" % number)
    assert fault.hits
    assert "cannot delete old entries of the journal" in caplog.text
    files = files.crash()
    assert Journal(files, DIRECTORY, SystemClock(), committer).entries == kept
    await committer.close()


@pytest.mark.parametrize(("epoch", "sequence"), [(0, 0), (0, 5), (1, 0)], ids=["first", "later", "new epoch"])
def test_after_a_write_fails_on_a_full_disk_later_batches_are_refused_without_a_sequence_error(
    epoch: int, sequence: int
) -> None:
    """After an error about a gap, a client would start a new epoch and could resend records that the log has."""
    files = FaultyFiles(1)
    log = filled(files)
    if (epoch, sequence) != (0, 0):
        append(log, *[b"before"] * 5, producer=(7, 0, 0))
    before = log.end_offset
    files.fail("write", path="*.log", error=errno.ENOSPC)
    with pytest.raises(PartitionFenced):
        append(log, b"first", producer=(7, epoch, sequence))
    for ahead in (1, 2, 3):
        with pytest.raises(PartitionFenced, match="must first resend"):
            append(log, b"later", producer=(7, epoch, sequence + ahead))
    assert append(log, b"first", producer=(7, epoch, sequence)).base_offset == before
    assert append(log, b"later", producer=(7, epoch, sequence + 1)).base_offset == before + 1
    with pytest.raises(OutOfOrderSequence):
        append(log, b"beyond", producer=(7, epoch, sequence + 3))


def test_a_producer_that_skips_a_batch_after_a_full_disk_gets_a_sequence_error() -> None:
    files = FaultyFiles(1)
    log = filled(files)
    files.fail("write", path="*.log", error=errno.ENOSPC)
    with pytest.raises(PartitionFenced):
        append(log, b"first", producer=(7, 0, 0))
    with pytest.raises(OutOfOrderSequence):
        append(log, b"second", producer=(7, 0, 1), now_ms=NOW_MS + 120_000)


def with_remembered_producer(files: FaultyFiles) -> PartitionLog:
    """A log with several segments and without ``.state`` files, so that a deletion must first write one."""
    log = filled(files)
    append(log, b"value-12", producer=(7, 0, 0))
    log.sync_now()
    assert len(log.segments) > 2
    for name in files.list(DIRECTORY):
        if name.endswith(".state"):
            files.remove(DIRECTORY / name)
    log._state_files._offsets.clear()
    return log


@pytest.mark.parametrize("times", [1, None], ids=["until there is room", "for good"])
def test_a_deletion_on_a_full_disk_frees_space_or_leaves_the_files(times: int | None) -> None:
    files = FaultyFiles(1)
    log = with_remembered_producer(files)
    first = log.segments[0]
    files.fail("write", path="*.state*", error=errno.ENOSPC, times=times)
    assert log.delete_before(9) == 9
    assert log.start_offset == 9
    assert (first in log.segments) is (times is None)
    assert not files.exists(first.index_path)
    for _ in range(10):
        after = PartitionLog(files.crash(), DIRECTORY, config=CONFIG, now_ms=NOW_MS)
        assert sorted(values_from(after)) == [9, 10, 11, 12]
        assert append(after, b"value-12", producer=(7, 0, 0)).duplicate


def test_a_directory_that_cannot_be_synced_for_a_deletion_fences_the_partition() -> None:
    files = FaultyFiles(1)
    log = with_remembered_producer(files)
    files.fail("sync_dir", path=str(DIRECTORY), error=errno.EIO)
    with pytest.raises(PartitionFenced, match="Input/output"):
        log.delete_before(9)
    assert log.needs_restart
    with pytest.raises(PartitionFenced):
        append(log, b"value-13")


@pytest.mark.parametrize("failure", ["fail", "short"])
def test_a_mark_whose_write_failed_is_written_at_the_next_sync(failure: str) -> None:
    files = FaultyFiles(1)
    log = filled(files)
    log.sync_mark()
    if failure == "fail":
        files.fail("write", path="*/mark")
    else:
        files.short_write(path="*/mark", written_bytes=20)
    append(log, b"value-12")
    log.sync_now()
    assert log.fenced is None
    log.sync_mark()
    for _ in range(20):
        after = PartitionLog(files.crash(), DIRECTORY, config=CONFIG, now_ms=NOW_MS)
        assert len(values_from(after)) == 13
        assert after.report.retained_tail_bytes == 0


async def test_records_appended_during_a_slow_flush_are_flushed_too() -> None:
    files = FaultyFiles(1)
    files.make_dir(DIRECTORY)
    files.sync_dir(DIRECTORY.parent)
    log = PartitionLog(files, DIRECTORY, config=CONFIG, waits_for_sync=False, now_ms=NOW_MS)
    committer = Committer(flush_interval_s=0.02)
    slow = threading.Event()
    files.watch = lambda operation, stage: (
        slow.wait(10) if stage == "during" and operation.path.suffix == ".log" else None
    )
    append(log, b"first")
    committer.durable(log, log.end_offset)
    while not log.is_syncing:
        await asyncio.sleep(0.01)
    append(log, b"second")
    committer.durable(log, log.end_offset)
    # Several flush intervals pass while the first sync is still in progress.
    await asyncio.sleep(0.2)
    slow.set()
    async with asyncio.timeout(120):
        while not log.is_synced:
            await asyncio.sleep(0.01)
    await committer.close()
