from __future__ import annotations

import contextlib
import itertools
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from faults.disk.faulty_files import Crash, FaultyFiles
from headrace.errors import ArchiveUnavailable, CorruptBatch, DamagedState, StorageError
from headrace.files import SystemFiles
from headrace.log.pace import Interrupted
from headrace.log.reader import LogReader
from headrace.log.retention import segments_past_retention, trim
from tests.support.s3 import S3Server
from tests.unit.log.archives import (
    CONFIG,
    ArchivedPartition,
    InBucket,
    InFolder,
    archive_now,
    begin_move,
    expected_names,
)
from tests.unit.log.compaction_runs import COMPACTED_TOPIC, begin_compaction, put, read_all, run, seal
from tests.unit.log.conftest import NOW_MS, append, values_from

from .by_time import offset_for_time


@pytest.fixture(params=["folder", "bucket"])
def archived(request: pytest.FixtureRequest, tmp_path: Path) -> ArchivedPartition:
    files = SystemFiles()
    if request.param == "folder":
        return ArchivedPartition(tmp_path, files, InFolder(tmp_path / "archive", files))
    return ArchivedPartition(tmp_path, files, InBucket(request.getfixturevalue("s3")))


def simulated(seed: int) -> tuple[ArchivedPartition, FaultyFiles]:
    files = FaultyFiles(seed)
    root = Path("/disk/root")
    files.make_dir(root)
    files.sync_dir(root.parent)
    return ArchivedPartition(root, files, InFolder(root / "archive", files)), files


ALL_VALUES = {number: b"value-%d" % number for number in range(40)}


def test_a_reader_gets_archived_and_local_records_in_one_sequence(archived: ArchivedPartition) -> None:
    log = archived.filled()
    assert archive_now(log) > 2
    assert log.start_offset == 0
    assert log.size_bytes <= 800 + 400
    assert values_from(log) == ALL_VALUES
    first = log.segments[0].base_offset
    assert log.local_start_offset == first
    assert {path.name for path in archived.home.glob("*.log")} == {
        segment.path.name for segment in log.segments
    }
    assert archived.archive.names() == expected_names(log)
    reader = LogReader(log)
    assert offset_for_time(reader.log, NOW_MS + 3) == (3, NOW_MS + 3)
    assert offset_for_time(reader.log, NOW_MS + first) == (first, NOW_MS + first)
    log.close()
    reopened = archived.open()
    assert (reopened.start_offset, reopened.end_offset) == (0, 40)
    assert values_from(reopened) == ALL_VALUES
    # More records are appended, and more segments are archived.
    for number in range(40, 80):
        append(reopened, b"value-%d" % number)
    reopened.sync_now()
    assert archive_now(reopened) > 2
    assert values_from(reopened) == {number: b"value-%d" % number for number in range(80)}


def test_retention_does_not_delete_records_of_a_topic_with_an_archive(archived: ArchivedPartition) -> None:
    log = archived.filled()
    assert trim(log, NOW_MS) is None
    assert values_from(log) == ALL_VALUES


def test_an_unavailable_archive_fails_only_reads_of_archived_offsets(archived: ArchivedPartition) -> None:
    log = archived.filled()
    archive_now(log)
    log.close()
    with archived.archive.unavailable():
        reopened = archived.open()
        first = reopened.local_start_offset
        assert (reopened.start_offset, reopened.report.damage) == (0, [])
        assert values_from(reopened, first) == {n: v for n, v in ALL_VALUES.items() if n >= first}
        reader = LogReader(reopened)
        with pytest.raises(ArchiveUnavailable) as raised:
            reader.read(0, 1000)
        assert raised.value.retriable
        assert "offsets 0 to" in str(raised.value)
        assert reopened.archive.segments[0].path in str(raised.value)
        assert offset_for_time(reopened, NOW_MS + first) == (first, NOW_MS + first)
        # While the archive is unavailable, no segment is moved and none is deleted.
        for number in range(40, 60):
            append(reopened, b"value-%d" % number)
        reopened.sync_now()
        with pytest.raises(ArchiveUnavailable):
            archive_now(reopened)
    assert values_from(reopened) == {number: b"value-%d" % number for number in range(60)}
    assert archive_now(reopened) > 0
    assert values_from(reopened) == {number: b"value-%d" % number for number in range(60)}


def test_segments_below_the_start_offset_are_deleted_from_the_archive(archived: ArchivedPartition) -> None:
    log = archived.filled()
    archive_now(log)
    last = log.archive.entries[-1]
    log.delete_before(last.base_offset)
    log.archive.adopt(log.archive.drop_below(log.start_offset, threading.Event()))
    assert [entry.base_offset for entry in log.archive.entries] == [last.base_offset]
    assert archived.archive.names() == expected_names(log)
    assert sorted(values_from(log)) == list(range(last.base_offset, 40))
    log.delete_before(39)
    log.archive.adopt(log.archive.drop_below(log.start_offset, threading.Event()))
    assert archived.archive.names() == set()
    assert (archived.open().start_offset, archived.open().end_offset) == (39, 40)


def test_a_read_that_began_before_a_segment_was_archived_finishes(archived: ArchivedPartition) -> None:
    log = archived.filled()
    reader = LogReader(log)
    plan = reader.plan(0, 300)
    assert plan is not None
    plan.segment.pin()
    archive_now(log)
    data = plan.fetch(wait=True)
    assert data is not None
    assert reader.finish(plan, data).next_offset > 0
    plan.segment.unpin()


def test_damage_in_the_archive_is_reported_as_a_corrupt_batch(archived: ArchivedPartition) -> None:
    log = archived.filled()
    archive_now(log)
    archived.archive.change(f"{0:020d}.log", 70)
    with pytest.raises(CorruptBatch, match=str(log.archive.segments[0].path)):
        LogReader(log).read(0, 1000)
    assert LogReader(log).read(1, 1000).next_offset > 1


def test_a_damaged_index_in_the_archive_is_rebuilt(archived: ArchivedPartition) -> None:
    log = archived.filled()
    archive_now(log)
    archived.archive.change(f"{0:020d}.index", 66)
    assert values_from(log) == ALL_VALUES
    assert offset_for_time(log, NOW_MS + 2) == (2, NOW_MS + 2)


def test_a_damaged_list_of_archived_segments_is_not_treated_as_empty(
    archived: ArchivedPartition,
) -> None:
    log = archived.filled()
    archive_now(log)
    log.close()
    with (archived.home / "archived").open("r+b") as file:
        file.seek(20)
        file.write(b"\xff")
    with pytest.raises(DamagedState):
        archived.open()


def test_a_producer_whose_batches_are_archived_is_still_known(archived: ArchivedPartition) -> None:
    log = archived.open()
    for sequence in range(40):
        append(log, b"value-%d" % sequence, producer=(7, 0, sequence))
    log.roll(NOW_MS)
    append(log, b"last")
    log.sync_now()
    log.config = replace(CONFIG, retention_bytes=0)
    assert archive_now(log) > 3
    reopened = archived.open()
    assert append(reopened, b"value-39", producer=(7, 0, 39)).duplicate


@pytest.mark.parametrize("ends", ["kill", "power"])
def test_a_move_interrupted_at_any_operation_loses_no_record(ends: str) -> None:
    for number in itertools.count(1):
        archived, files = simulated(number)
        log = archived.filled()
        fault = files.crash_at(number, when="after")
        with contextlib.suppress(Crash):
            archive_now(log)
        if not fault.hits:
            assert number > 20
            return
        for _ in range(1 if ends == "kill" else 6):
            disk = files.restart() if ends == "kill" else files.crash()
            reopened = archived.open(disk, leader_epoch=1)
            assert reopened.report.damage == []
            assert values_from(reopened) == ALL_VALUES
            if ends == "kill":
                archive_now(reopened)
                assert values_from(reopened) == ALL_VALUES
                assert values_from(archived.open(disk.crash(), leader_epoch=2)) == ALL_VALUES


def partition_in_bucket(seed: int, archive: InBucket) -> tuple[ArchivedPartition, FaultyFiles]:
    """A partition on a simulated disk that can crash, with an archive in a real bucket."""
    files = FaultyFiles(seed)
    archived = ArchivedPartition(Path("/disk"), files, archive)
    return archived, files


def test_a_move_to_a_bucket_interrupted_at_any_operation_loses_no_record_and_leaves_no_file(
    s3: S3Server,
) -> None:
    archive = InBucket(s3)
    for number in itertools.count(1):
        archived, files = partition_in_bucket(number, archive)
        log = archived.filled(18)
        everything = values_from(log)
        fault = files.crash_at(number, when="after")
        with contextlib.suppress(Crash):
            assert archive_now(log) == 1
        if not fault.hits:
            assert number > 10
            return
        reopened = archived.open(files.crash(), leader_epoch=1)
        assert reopened.report.damage == []
        assert values_from(reopened) == everything
        # Retention is off, so no later move overwrites the incomplete copy. Only the file
        # ``archiving`` records that it exists.
        reopened.config = replace(CONFIG, retention_bytes=-1)
        reopened.archive.remove_unfinished(threading.Event())
        assert archive.names() == expected_names(reopened)
        assert values_from(reopened) == everything
        reopened.archive.drop_below(reopened.end_offset, threading.Event())


def test_a_bucket_that_fails_at_any_request_of_a_move_loses_no_record_and_leaves_no_file(
    s3: S3Server,
) -> None:
    archive = InBucket(s3)
    for passing_requests in itertools.count():
        archived, _ = partition_in_bucket(passing_requests, archive)
        log = archived.filled(18)
        everything = values_from(log)
        faults_before = s3.injected_faults
        with s3.rule("refuse", passing=passing_requests), contextlib.suppress(ArchiveUnavailable):
            assert archive_now(log) == 1
        if s3.injected_faults == faults_before:
            assert passing_requests > 5
            return
        assert values_from(log) == everything
        assert log.archive.entries == []
        assert archive_now(log) == 1
        assert archive.names() == expected_names(log)
        assert values_from(log) == everything
        log.archive.drop_below(log.end_offset, threading.Event())


def test_an_archived_copy_that_reads_back_differently_is_not_listed(s3: S3Server) -> None:
    archived, _ = partition_in_bucket(1, InBucket(s3))
    log = archived.filled(18)
    everything = values_from(log)
    with s3.rule("spoil", "GET"), pytest.raises(ArchiveUnavailable, match=r"reads back as .* were sent"):
        archive_now(log)
    assert log.archive.entries == []
    assert values_from(log) == everything


def test_after_a_failed_write_the_segment_list_is_rewritten_before_the_archived_copy_is_removed() -> None:
    # The list may be on disk although the write failed. A start would then treat the segment as archived, and remove
    # its local file.
    for number in itertools.count(1):
        archived, files = simulated(number)
        log = archived.filled(18)
        everything = values_from(log)
        files.fail("sync_dir", path="*/partition", nth=2)
        with pytest.raises(OSError, match="Input/output"):
            archive_now(log)
        fault = files.crash_at(number, when="after")
        with contextlib.suppress(Crash):
            archive_now(log)
        reopened = archived.open(files.restart(), leader_epoch=1)
        assert values_from(reopened) == everything
        if not fault.hits:
            assert number > 10
            return


def test_an_abandoned_move_changes_nothing(archived: ArchivedPartition) -> None:
    log = archived.filled()
    archiving = begin_move(log)
    assert archiving is not None
    archiving.end()
    with pytest.raises(Interrupted):
        archiving.copy()
    assert log.compacting is None
    log.close()
    reopened = archived.open()
    assert reopened.archive.entries == []
    assert values_from(reopened) == ALL_VALUES
    assert archive_now(reopened) > 2
    assert archived.archive.names() == expected_names(reopened)


def test_a_truncated_segment_is_not_uploaded(
    archived: ArchivedPartition, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = archived.filled()
    sent: list[str] = []
    monkeypatch.setattr(log.archive._location.store, "put", lambda name, chunks, size: sent.append(name))
    first = log.segments[0]
    first.file.truncate(first.size - 1)
    with pytest.raises(StorageError, match=f"has {first.size - 1} bytes, expected {first.size}"):
        archive_now(log)
    assert sent == []


def test_an_aborted_move_does_not_remove_files_that_a_later_move_archived(
    archived: ArchivedPartition, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = archived.filled()
    archive_now(log)
    for number in range(40, 60):
        append(log, b"value-%d" % number, timestamp_ms=NOW_MS + number)
    log.sync_now()
    archiving = begin_move(log)
    assert archiving is not None
    successors = []

    def hanging(name: str) -> list[str]:
        archiving.end()
        log.close()
        successors.append(archived.open())
        assert archive_now(successors[0]) > 0
        return [name]

    monkeypatch.setattr(log.archive._location.store, "list", hanging)
    with pytest.raises(Interrupted):
        archiving.copy()
    (successor,) = successors
    assert not (archived.home / "archiving").exists()
    assert archived.archive.names() == expected_names(successor)
    assert values_from(successor) == {number: b"value-%d" % number for number in range(60)}


def test_segments_of_an_unfinished_swap_are_not_archived() -> None:
    archived, files = simulated(1)
    log = archived.open()
    log.config = COMPACTED_TOPIC
    for number in range(40):
        put(log, (b"key-%d" % (number % 3), b"value-%d" % number))
    seal(log)
    # Compaction merges several segments. Only the first of them is old enough for the archive.
    kept_bytes = log.size_bytes - log.segments[0].size
    log.config = replace(
        COMPACTED_TOPIC, retention_bytes=kept_bytes, is_archived=True, cleanup_policy="compact,delete"
    )
    before = read_all(log).newest_by_key()
    compaction = begin_compaction(log, files)
    assert compaction is not None
    # The second sync_dir of a swap fails: the swap file may be durable, but no file has been renamed.
    files.fail("sync_dir", path="*/partition", nth=2)
    with pytest.raises(OSError, match="Input/output"):
        run(compaction)
    compaction.end()
    assert segments_past_retention(log, NOW_MS)
    assert archive_now(log) == 0
    reopened = archived.open(files.crash(), leader_epoch=1)
    assert reopened.unfinished_swap is None
    assert read_all(reopened).newest_by_key() == before
