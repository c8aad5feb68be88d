from __future__ import annotations

import os
import shutil
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.errors import PartitionFenced, StorageError
from headrace.files import SystemFile, SystemFiles
from headrace.log.partition import PartitionLog
from headrace.log.producers import OutOfOrderSequence, StaleProducerEpoch
from headrace.log.reader import LogReader
from tests.unit.log.conftest import NOW_MS, PartitionFixture, append, values_from

from .by_time import offset_for_time, offset_of_max_timestamp

Filled = Callable[..., PartitionLog]


def test_offsets_have_no_gaps_and_records_are_read_in_append_order(filled: Filled) -> None:
    log = filled()
    assert values_from(log) == {offset: b"value-%d" % offset for offset in range(120)}
    assert len(log.segments) > 2


def test_readers_do_not_get_unsynced_records(desk: PartitionFixture) -> None:
    log = desk.open()
    append(log, b"a")
    assert log.high_watermark == 0
    assert values_from(log) == {}
    job = log.begin_sync()
    assert job is not None
    append(log, b"b")
    job.run()
    log.end_sync(job, None)
    assert values_from(log) == {0: b"a"}
    assert not log.is_synced


def test_with_durability_os_readers_get_unsynced_records(desk: PartitionFixture) -> None:
    log = desk.open(waits_for_sync=False)
    append(log, b"a")
    assert values_from(log) == {0: b"a"}


def test_a_read_after_the_topic_was_deleted_opens_no_file(filled: Filled) -> None:
    log = filled()
    log.abandon("its topic is deleted")
    with pytest.raises(StorageError, match="removed with its topic"):
        LogReader(log).read(0, 1_000)


def test_a_start_after_a_clean_stop_reads_no_segment(filled: Filled, desk: PartitionFixture) -> None:
    filled().close()
    read: list[str] = []

    class Watched(SystemFiles):
        def open(self, path, *, create=False):  # type: ignore[no-untyped-def]
            file = super().open(path, create=create)
            if path.suffix == ".log":
                pread = file.pread

                class Noted:
                    def __getattr__(self, name: str) -> object:
                        return getattr(file, name)

                    def pread(self, size: int, position: int) -> bytes:
                        read.append(path.name)
                        return pread(size, position)

                return Noted()
            return file

    log = PartitionLog(Watched(), desk.directory, now_ms=NOW_MS)
    assert log.end_offset == 120
    assert log.report.is_clean
    assert read == []


def test_synced_records_survive_a_kill(filled: Filled, desk: PartitionFixture) -> None:
    filled()
    reopened = desk.open()
    assert values_from(reopened) == {offset: b"value-%d" % offset for offset in range(120)}
    assert reopened.report.truncated_bytes == 0


def test_a_torn_last_batch_is_truncated_at_start(filled: Filled, desk: PartitionFixture) -> None:
    log = filled()
    append(log, b"torn" * 20)
    active = log.active
    os.truncate(active.path, active.size - 7)
    reopened = desk.open()
    assert reopened.end_offset == 120
    assert reopened.report.truncated_bytes > 0
    assert append(reopened, b"next").base_offset == 120
    reopened.sync_now()
    assert values_from(desk.open())[120] == b"next"


def test_a_complete_batch_above_the_mark_is_retained(filled: Filled, desk: PartitionFixture) -> None:
    log = filled()
    append(log, b"unsynced but whole")
    reopened = desk.open()
    assert reopened.end_offset == 121
    assert reopened.report.retained_tail_bytes > 0
    assert values_from(reopened)[120] == b"unsynced but whole"


def test_unsynced_segments_after_a_torn_one_are_removed(desk: PartitionFixture) -> None:
    log = desk.open()
    append(log, b"first")
    log.sync_now()
    for number in range(60):
        append(log, b"unsynced-%d" % number * 5)
    assert len(log.segments) > 2
    os.truncate(log.segments[0].path, log.segments[0].size - 3)
    reopened = desk.open()
    assert reopened.end_offset == reopened.segments[0].end_offset
    assert len(reopened.segments) == 1
    assert list(values_from(reopened)) == list(range(reopened.end_offset))


def test_a_repeated_batch_of_an_idempotent_producer_gets_its_first_offset(desk: PartitionFixture) -> None:
    log = desk.open()
    for number in range(5):
        append(log, b"x", b"y", producer=(7, 0, number * 2))
    reopened = append(log, b"x", b"y", producer=(7, 0, 4))
    assert (reopened.base_offset, reopened.last_offset, reopened.duplicate) == (4, 5, True)
    assert log.end_offset == 10


def test_producers_are_remembered_across_a_kill_and_a_clean_stop(desk: PartitionFixture) -> None:
    log = desk.open()
    for number in range(40):
        append(log, b"value" * 10, producer=(7, 0, number))
    log.sync_now()
    killed = desk.open()
    assert append(killed, b"value" * 10, producer=(7, 0, 39)).base_offset == 39
    assert append(killed, b"more", producer=(7, 0, 40)).base_offset == 40
    killed.close()
    clean = desk.open()
    assert append(clean, b"more", producer=(7, 0, 40)).duplicate
    with pytest.raises(OutOfOrderSequence):
        append(clean, b"gap", producer=(7, 0, 42))
    with pytest.raises(StaleProducerEpoch):
        append(desk_epoch(clean), b"old", producer=(7, 0, 41))


def desk_epoch(log: PartitionLog) -> PartitionLog:
    append(log, b"new epoch", producer=(7, 1, 0))
    return log


def test_damaged_state_files_are_rebuilt_from_the_batches(desk: PartitionFixture) -> None:
    log = desk.open()
    for number in range(40):
        append(log, b"value" * 10, producer=(7, 0, number))
    log.close()
    for path in desk.directory.glob("*.state"):
        path.write_bytes(path.read_bytes()[:-9])
    assert append(desk.open(), b"value" * 10, producer=(7, 0, 39)).duplicate


def test_sequences_wrap_to_zero_after_the_maximum(desk: PartitionFixture) -> None:
    log = desk.open()
    append(log, b"a", b"b", producer=(1, 0, 2**31 - 2))
    assert append(log, b"c", producer=(1, 0, 0)).base_offset == 2


def test_a_failed_sync_fences_the_partition_and_synced_records_stay_readable(filled: Filled) -> None:
    log = filled()
    append(log, b"never safe")
    job = log.begin_sync()
    assert job is not None
    log.end_sync(job, OSError(5, "Input/output error"))
    with pytest.raises(PartitionFenced) as raised:
        append(log, b"later")
    assert "sync failed" in str(raised.value)
    assert log.begin_sync() is None
    assert values_from(log) == {offset: b"value-%d" % offset for offset in range(120)}


def test_a_full_disk_and_its_recovery_are_logged_once_each(
    desk: PartitionFixture, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    log = desk.open()
    append(log, b"before")
    with monkeypatch.context() as full:
        full.setattr(SystemFile, "pwrite", lambda *_: 10)
        for _ in range(3):
            with pytest.raises(PartitionFenced, match="short write: 10 of"):
                append(log, b"refused")
    (message,) = [record.getMessage() for record in caplog.records]
    assert str(desk.directory) in message
    assert "free disk space" in message
    with caplog.at_level("INFO", "headrace.log"):
        assert append(log, b"after").base_offset == 1
        append(log, b"later")
    assert [record.getMessage() for record in caplog.records][1:] == [
        f"the partition in {desk.directory} accepts writes again"
    ]


def test_a_lookup_by_time_returns_the_first_record_at_or_after_it(filled: Filled) -> None:
    log = filled()
    reader = LogReader(log)
    for number in range(40):
        assert offset_for_time(reader.log, NOW_MS + number) == (number * 3, NOW_MS + number)
    assert offset_for_time(reader.log, 0) == (0, NOW_MS)
    assert offset_for_time(reader.log, NOW_MS + 40) is None
    assert offset_of_max_timestamp(reader.log) == (117, NOW_MS + 39)


def test_the_greatest_timestamp_ignores_records_above_the_high_watermark(filled: Filled) -> None:
    log = filled()
    append(log, b"future", timestamp_ms=NOW_MS + 10**6)
    reader = LogReader(log)
    assert offset_of_max_timestamp(reader.log) == (117, NOW_MS + 39)
    log.sync_now()
    assert offset_of_max_timestamp(reader.log) == (120, NOW_MS + 10**6)


def test_the_end_offset_of_each_leader_epoch_is_known(filled: Filled, desk: PartitionFixture) -> None:
    filled().close()
    second = desk.open(leader_epoch=3)
    append(second, b"third epoch")
    second.close()
    third = desk.open(leader_epoch=5)
    assert third.end_of_epoch(0) == (0, 120)
    assert third.end_of_epoch(1) == (0, 120)
    assert third.end_of_epoch(3) == (3, 121)
    assert third.end_of_epoch(5) == (5, 121)
    assert third.end_of_epoch(6) == (-1, -1)


@settings(max_examples=60, deadline=None)
@given(
    steps=st.lists(
        st.one_of(
            st.tuples(st.just("append"), st.integers(1, 5)),
            st.just(("sync", 0)),
            st.just(("kill", 0)),
            st.just(("close", 0)),
            st.tuples(st.just("delete"), st.integers(0, 60)),
        ),
        max_size=40,
    )
)
def test_a_partition_agrees_with_a_list_after_random_operations(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, int]]
) -> None:
    directory = tmp_path_factory.mktemp("history")
    desk = PartitionFixture(directory / "p")
    log = desk.open()
    written: list[bytes] = []
    for step, number in steps:
        if step == "append":
            values = [b"v%d" % (len(written) + i) for i in range(number)]
            append(log, *values)
            written += values
        elif step == "sync":
            log.sync_now()
        elif step == "delete":
            log.delete_before(number)
        else:
            if step == "close":
                log.close()
            start = log.start_offset
            log = desk.open()
            assert (log.start_offset, log.end_offset) == (start, len(written))
    log.sync_now()
    found = values_from(log)
    expected = {offset: value for offset, value in enumerate(written) if offset >= log.start_offset}
    assert {offset: found.get(offset) for offset in expected} == expected
    shutil.rmtree(directory)
