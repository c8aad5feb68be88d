from __future__ import annotations

import contextlib
import itertools
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from headrace.errors import ArchiveUnavailable, CorruptBatch, DamagedState, StorageError
from headrace.files import SystemFiles
from headrace.log.pace import Interrupted
from headrace.log.reader import LogReader
from headrace.log.retention import outlived, trim
from headrace.testing.faulty_files import Crash, FaultyFiles
from tests.support.s3 import S3Server
from tests.unit.log.archives import CONFIG, InBucket, InFolder, Place, archive_now, begun, expected_names
from tests.unit.log.compacting import COMPACTING, began, put, read_all, run, seal
from tests.unit.log.conftest import NOW_MS, append, values_from

from .by_time import offset_for_time


@pytest.fixture(params=["folder", "bucket"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    files = SystemFiles()
    if request.param == "folder":
        return Place(tmp_path, files, InFolder(tmp_path / "archive", files))
    return Place(tmp_path, files, InBucket(request.getfixturevalue("s3")))


def simulated(seed: int) -> tuple[Place, FaultyFiles]:
    files = FaultyFiles(seed)
    root = Path("/disk/root")
    files.make_dir(root)
    files.sync_dir(root.parent)
    return Place(root, files, InFolder(root / "archive", files)), files


EVERYTHING = {number: b"value-%d" % number for number in range(40)}


def test_reading_crosses_the_archive_and_the_partition_unseen(place: Place) -> None:
    log = place.filled()
    assert archive_now(log) > 2
    assert log.start_offset == 0
    assert log.size_bytes <= 800 + 400
    assert values_from(log) == EVERYTHING
    first = log.segments[0].base_offset
    assert log.local_start_offset == first
    assert {path.name for path in place.home.glob("*.log")} == {segment.path.name for segment in log.segments}
    assert place.archive.names() == expected_names(log)
    reader = LogReader(log)
    assert offset_for_time(reader.log, NOW_MS + 3) == (3, NOW_MS + 3)
    assert offset_for_time(reader.log, NOW_MS + first) == (first, NOW_MS + first)
    log.close()
    again = place.open()
    assert (again.start_offset, again.end_offset) == (0, 40)
    assert values_from(again) == EVERYTHING
    # More comes and more goes.
    for number in range(40, 80):
        append(again, b"value-%d" % number)
    again.sync_now()
    assert archive_now(again) > 2
    assert values_from(again) == {number: b"value-%d" % number for number in range(80)}


def test_retention_deletes_nothing_of_an_archived_topic(place: Place) -> None:
    log = place.filled()
    assert trim(log, NOW_MS) is None
    assert values_from(log) == EVERYTHING


def test_an_archive_that_is_away_fails_its_own_range_only(place: Place) -> None:
    log = place.filled()
    archive_now(log)
    log.close()
    with place.archive.away():
        again = place.open()
        first = again.local_start_offset
        assert (again.start_offset, again.report.damage) == (0, [])
        assert values_from(again, first) == {n: v for n, v in EVERYTHING.items() if n >= first}
        reader = LogReader(again)
        with pytest.raises(ArchiveUnavailable) as raised:
            reader.read(0, 1000)
        assert raised.value.retriable
        assert "offsets 0 to" in str(raised.value)
        assert again.archive.segments[0].path in str(raised.value)
        assert offset_for_time(again, NOW_MS + first) == (first, NOW_MS + first)
        # Nothing is moved to where it is not, and nothing is deleted.
        for number in range(40, 60):
            append(again, b"value-%d" % number)
        again.sync_now()
        with pytest.raises(ArchiveUnavailable):
            archive_now(again)
    assert values_from(again) == {number: b"value-%d" % number for number in range(60)}
    assert archive_now(again) > 0
    assert values_from(again) == {number: b"value-%d" % number for number in range(60)}


def test_a_start_offset_that_moves_takes_the_archive_with_it(place: Place) -> None:
    log = place.filled()
    archive_now(log)
    last = log.archive.entries[-1]
    log.delete_before(last.base_offset)
    log.archive.adopt(log.archive.drop_below(log.start_offset, threading.Event()))
    assert [entry.base_offset for entry in log.archive.entries] == [last.base_offset]
    assert place.archive.names() == expected_names(log)
    assert sorted(values_from(log)) == list(range(last.base_offset, 40))
    log.delete_before(39)
    log.archive.adopt(log.archive.drop_below(log.start_offset, threading.Event()))
    assert place.archive.names() == set()
    assert (place.open().start_offset, place.open().end_offset) == (39, 40)


def test_a_reader_that_holds_a_moved_file_reads_on_in_it(place: Place) -> None:
    log = place.filled()
    reader = LogReader(log)
    plan = reader.plan(0, 300)
    assert plan is not None
    plan.segment.pin()
    archive_now(log)
    data = plan.fetch(wait=True)
    assert data is not None
    assert reader.finish(plan, data).next_offset > 0
    plan.segment.unpin()


def test_damage_in_the_archive_is_told_like_any_other(place: Place) -> None:
    log = place.filled()
    archive_now(log)
    place.archive.change(f"{0:020d}.log", 70)
    with pytest.raises(CorruptBatch, match=str(log.archive.segments[0].path)):
        LogReader(log).read(0, 1000)
    assert LogReader(log).read(1, 1000).next_offset > 1


def test_an_index_that_is_damaged_in_the_archive_is_made_again(place: Place) -> None:
    log = place.filled()
    archive_now(log)
    place.archive.change(f"{0:020d}.index", 66)
    assert values_from(log) == EVERYTHING
    assert offset_for_time(log, NOW_MS + 2) == (2, NOW_MS + 2)


def test_a_damaged_list_of_the_archive_is_not_taken_for_an_empty_one(place: Place) -> None:
    log = place.filled()
    archive_now(log)
    log.close()
    with (place.home / "archived").open("r+b") as file:
        file.seek(20)
        file.write(b"\xff")
    with pytest.raises(DamagedState):
        place.open()


def test_a_producer_is_known_though_its_batches_are_in_the_archive(place: Place) -> None:
    log = place.open()
    for sequence in range(40):
        append(log, b"value-%d" % sequence, producer=(7, 0, sequence))
    log.roll(NOW_MS)
    append(log, b"last")
    log.sync_now()
    log.config = replace(CONFIG, retention_bytes=0)
    assert archive_now(log) > 3
    again = place.open()
    assert append(again, b"value-39", producer=(7, 0, 39)).duplicate


@pytest.mark.parametrize("ends", ["kill", "power"])
def test_a_move_cut_short_anywhere_loses_nothing(ends: str) -> None:
    for number in itertools.count(1):
        place, files = simulated(number)
        log = place.filled()
        fault = files.crash_at(number, when="after")
        with contextlib.suppress(Crash):
            archive_now(log)
        if not fault.hits:
            assert number > 20
            return
        for _ in range(1 if ends == "kill" else 6):
            next_one = files.restart() if ends == "kill" else files.crash()
            again = place.open(next_one, leader_epoch=1)
            assert again.report.damage == []
            assert values_from(again) == EVERYTHING
            if ends == "kill":
                archive_now(again)
                assert values_from(again) == EVERYTHING
                assert values_from(place.open(next_one.crash(), leader_epoch=2)) == EVERYTHING


def in_bucket(seed: int, archive: InBucket) -> tuple[Place, FaultyFiles]:
    """A partition on files that can crash, with one segment to move to a bucket that cannot."""
    files = FaultyFiles(seed)
    place = Place(Path("/disk"), files, archive)
    return place, files


def test_a_move_to_a_bucket_cut_short_anywhere_loses_nothing_and_leaves_nothing(s3: S3Server) -> None:
    archive = InBucket(s3)
    for number in itertools.count(1):
        place, files = in_bucket(number, archive)
        log = place.filled(18)
        everything = values_from(log)
        fault = files.crash_at(number, when="after")
        with contextlib.suppress(Crash):
            assert archive_now(log) == 1
        if not fault.hits:
            assert number > 10
            return
        again = place.open(files.crash(), leader_epoch=1)
        assert again.report.damage == []
        assert values_from(again) == everything
        # Found by the note alone: nothing is due that could write it again.
        again.config = replace(CONFIG, retention_bytes=-1)
        again.archive.remove_unfinished(threading.Event())
        assert archive.names() == expected_names(again)
        assert values_from(again) == everything
        again.archive.drop_below(again.end_offset, threading.Event())


def test_a_bucket_that_goes_away_at_any_request_of_a_move_loses_nothing_and_leaves_nothing(
    s3: S3Server,
) -> None:
    archive = InBucket(s3)
    for passing in itertools.count():
        place, _ = in_bucket(passing, archive)
        log = place.filled(18)
        everything = values_from(log)
        struck = s3.struck
        with s3.rule("refuse", passing=passing), contextlib.suppress(ArchiveUnavailable):
            assert archive_now(log) == 1
        if s3.struck == struck:
            assert passing > 5
            return
        assert values_from(log) == everything
        assert log.archive.entries == []
        assert archive_now(log) == 1
        assert archive.names() == expected_names(log)
        assert values_from(log) == everything
        log.archive.drop_below(log.end_offset, threading.Event())


def test_a_copy_that_reads_back_otherwise_is_not_named(s3: S3Server) -> None:
    place, _ = in_bucket(1, InBucket(s3))
    log = place.filled(18)
    everything = values_from(log)
    with s3.rule("spoil", "GET"), pytest.raises(ArchiveUnavailable, match=r"reads back as .* were sent"):
        archive_now(log)
    assert log.archive.entries == []
    assert values_from(log) == everything


def test_the_list_that_failed_to_be_written_is_written_again_before_the_copy_goes() -> None:
    # The disk may have it all the same: then a start would take the segment for archived, and remove its own file.
    for number in itertools.count(1):
        place, files = simulated(number)
        log = place.filled(18)
        everything = values_from(log)
        files.fail("sync_dir", path="*/partition", nth=2)
        with pytest.raises(OSError, match="Input/output"):
            archive_now(log)
        fault = files.crash_at(number, when="after")
        with contextlib.suppress(Crash):
            archive_now(log)
        again = place.open(files.restart(), leader_epoch=1)
        assert values_from(again) == everything
        if not fault.hits:
            assert number > 10
            return


def test_a_move_that_is_given_up_decides_nothing_any_more(place: Place) -> None:
    log = place.filled()
    archiving = begun(log)
    assert archiving is not None
    archiving.end()
    with pytest.raises(Interrupted):
        archiving.copy()
    assert log.compacting is None
    log.close()
    again = place.open()
    assert again.archive.entries == []
    assert values_from(again) == EVERYTHING
    assert archive_now(again) > 2
    assert place.archive.names() == expected_names(again)


def test_nothing_is_sent_of_a_segment_whose_file_is_too_short(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = place.filled()
    sent: list[str] = []
    monkeypatch.setattr(log.archive._place.store, "put", lambda name, chunks, size: sent.append(name))
    first = log.segments[0]
    first.file.truncate(first.size - 1)
    with pytest.raises(StorageError, match=f"ends at byte {first.size - 1} of {first.size}"):
        archive_now(log)
    assert sent == []


def test_a_move_that_is_given_up_while_the_archive_hangs_leaves_what_its_successor_moved(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = place.filled()
    archive_now(log)
    for number in range(40, 60):
        append(log, b"value-%d" % number, timestamp_ms=NOW_MS + number)
    log.sync_now()
    archiving = begun(log)
    assert archiving is not None
    successors = []

    def hanging(name: str) -> list[str]:
        archiving.end()
        log.close()
        successors.append(place.open())
        assert archive_now(successors[0]) > 0
        return [name]

    monkeypatch.setattr(log.archive._place.store, "list", hanging)
    with pytest.raises(Interrupted):
        archiving.copy()
    (successor,) = successors
    assert not (place.home / "archiving").exists()
    assert place.archive.names() == expected_names(successor)
    assert values_from(successor) == {number: b"value-%d" % number for number in range(60)}


def test_segments_of_an_unfinished_swap_are_not_archived_and_nothing_is_lost() -> None:
    place, files = simulated(1)
    log = place.open()
    log.config = COMPACTING
    for number in range(40):
        put(log, (b"key-%d" % (number % 3), b"value-%d" % number))
    seal(log)
    # Of the segments that become one, the first is old enough.
    kept_bytes = log.size_bytes - log.segments[0].size
    log.config = replace(
        COMPACTING, retention_bytes=kept_bytes, is_archived=True, cleanup_policy="compact,delete"
    )
    before = read_all(log).fold()
    compaction = began(log, files)
    assert compaction is not None
    # The second in a decision: it may be durable, and nothing has been renamed.
    files.fail("sync_dir", path="*/partition", nth=2)
    with pytest.raises(OSError, match="Input/output"):
        run(compaction)
    compaction.end()
    assert outlived(log, NOW_MS)
    assert archive_now(log) == 0
    again = place.open(files.crash(), leader_epoch=1)
    assert again.unsettled is None
    assert read_all(again).fold() == before
