from __future__ import annotations

import contextlib
import itertools
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from headrace.errors import ArchiveUnavailable, DamagedState
from headrace.files import Files, SystemFiles
from headrace.log.archive_folder import FolderStore
from headrace.log.archive_store import INDEX_BYTES_MAX, ArchivePlace
from headrace.log.archiving import Archiving
from headrace.log.byte_cache import ByteCache
from headrace.log.config import LogConfig
from headrace.log.pace import Pace
from headrace.log.partition import PartitionLog
from headrace.log.reader import LogReader
from headrace.log.retention import outlived, trim
from headrace.records import RecordLimits
from headrace.testing.faulty_clock import DrivenClock
from headrace.testing.faulty_files import Crash, FaultyFiles
from tests.unit.log.compacting import COMPACTING, began, put, read_all, run, seal
from tests.unit.log.conftest import NOW_MS, append, values_from

CONFIG = LogConfig(
    segment_bytes=400, index_interval_bytes=100, retention_bytes=800, retention_ms=-1, is_archived=True
)


class Place:
    """A partition, and the archive's folder for it."""

    def __init__(self, root: Path, files: Files) -> None:
        self.files = files
        self.root = root
        self.archive = root / "archive"
        for directory in (root, root / "partition", self.archive):
            files.make_dir(directory)
            files.sync_dir(directory.parent)

    def open(self, files: Files | None = None, *, leader_epoch: int = 0) -> PartitionLog:
        return PartitionLog(
            files or self.files,
            self.root / "partition",
            config=CONFIG,
            now_ms=NOW_MS,
            leader_epoch=leader_epoch,
            archive_place=ArchivePlace(
                FolderStore(files or self.files, self.archive, "cluster"),
                "topic/0",
                ByteCache(INDEX_BYTES_MAX),
            ),
        )

    def filled(self, count: int = 40) -> PartitionLog:
        log = self.open()
        for number in range(count):
            append(log, b"value-%d" % number, timestamp_ms=NOW_MS + number)
        log.sync_now()
        return log


def archive_now(log: PartitionLog) -> int:
    def pace(stop: threading.Event) -> Pace:
        return Pace(DrivenClock(), stop, 0)

    archiving = Archiving.begin(log, outlived(log, NOW_MS), pace)
    if archiving is None:
        return 0
    moved = 0
    try:
        while archiving.segments:
            archiving.copy()
            archiving.adopt().remove_files()
            moved += 1
    finally:
        archiving.end()
    return moved


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path / "root", SystemFiles())


EVERYTHING = {number: b"value-%d" % number for number in range(40)}


def test_reading_crosses_the_archive_and_the_partition_unseen(place: Place) -> None:
    log = place.filled()
    assert archive_now(log) > 2
    assert log.start_offset == 0
    assert log.size_bytes <= 800 + 400
    assert values_from(log) == EVERYTHING
    first = log.segments[0].base_offset
    assert log.local_start_offset == first
    assert {path.name for path in (place.root / "partition").glob("*.log")} == {
        segment.path.name for segment in log.segments
    }
    reader = LogReader(log)
    assert reader.offset_for_time(NOW_MS + 3, RecordLimits()) == (3, NOW_MS + 3)
    assert reader.offset_for_time(NOW_MS + first, RecordLimits()) == (first, NOW_MS + first)
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
    away = place.archive.rename(place.root / "away")
    again = place.open()
    first = again.local_start_offset
    assert (again.start_offset, again.report.damage) == (0, [])
    assert values_from(again, first) == {n: v for n, v in EVERYTHING.items() if n >= first}
    reader = LogReader(again)
    with pytest.raises(ArchiveUnavailable) as raised:
        reader.read(0, 1000)
    assert "offsets 0 to" in str(raised.value)
    assert str(place.archive) in str(raised.value)
    assert reader.offset_for_time(NOW_MS + first, RecordLimits()) == (first, NOW_MS + first)
    # Nothing is moved to where it is not, and nothing is deleted.
    for number in range(40, 60):
        append(again, b"value-%d" % number)
    again.sync_now()
    with pytest.raises(ArchiveUnavailable):
        archive_now(again)
    assert not place.archive.exists()
    away.rename(place.archive)
    assert values_from(again) == {number: b"value-%d" % number for number in range(60)}
    assert archive_now(again) > 0


def test_a_start_offset_that_moves_takes_the_archive_with_it(place: Place) -> None:
    log = place.filled()
    archive_now(log)
    last = log.archive.entries[-1]
    log.delete_before(last.base_offset)
    log.archive.adopt(log.archive.drop_below(log.start_offset, threading.Event()))
    assert [entry.base_offset for entry in log.archive.entries] == [last.base_offset]
    assert [str(path) for path in place.archive.glob("*/*/0/*.log")] == [log.archive.segments[0].path]
    assert sorted(values_from(log)) == list(range(last.base_offset, 40))
    log.delete_before(39)
    log.archive.adopt(log.archive.drop_below(log.start_offset, threading.Event()))
    assert not list(place.archive.glob("*/*/0/*.log"))
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
    path = Path(log.archive.segments[0].path)
    with path.open("r+b") as file:
        file.seek(70)
        file.write(b"\xff\xff")
    with pytest.raises(Exception, match=str(path)):
        LogReader(log).read(0, 1000)
    assert LogReader(log).read(1, 1000).next_offset > 1


def test_a_damaged_list_of_the_archive_is_not_taken_for_an_empty_one(place: Place) -> None:
    log = place.filled()
    archive_now(log)
    log.close()
    with (place.root / "partition" / "archived").open("r+b") as file:
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
        files = FaultyFiles(number)
        place = Place(Path("/disk/root"), files)
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


def test_segments_of_an_unfinished_swap_are_not_archived_and_nothing_is_lost() -> None:
    files = FaultyFiles(1)
    place = Place(Path("/disk/root"), files)
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
