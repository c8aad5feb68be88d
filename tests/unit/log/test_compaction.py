from __future__ import annotations

import contextlib
from dataclasses import replace
from pathlib import Path

import pytest

from headrace.errors import CorruptBatch
from headrace.log.compaction import due, needs_roll
from headrace.log.config import LogConfig
from headrace.log.key_map import KEY_BYTES
from headrace.log.pace import Interrupted
from headrace.log.partition import PartitionLog
from headrace.log.reader import LogReader
from headrace.records import RecordLimits, iter_headers, open_batch
from tests.unit.log.compaction_runs import (
    COMPACTED_TOPIC,
    assert_unbroken,
    begin_compaction,
    compact,
    end_transaction,
    newest_by_key,
    put,
    read_all,
    run,
    seal,
)
from tests.unit.log.conftest import NOW_MS, PartitionFixture

from .by_time import offset_for_time, offset_of_max_timestamp


def open_log(desk: PartitionFixture, **changes: object) -> PartitionLog:
    return desk.open(config=replace(COMPACTED_TOPIC, **changes))  # type: ignore[arg-type]


def log_with_updates(
    desk: PartitionFixture, updates: int = 60, keys: int = 4, **changes: object
) -> PartitionLog:
    log = open_log(desk, **changes)
    for number in range(updates):
        put(log, (b"key-%d" % (number % keys), b"value-%d" % number))
    seal(log)
    return log


def test_the_newest_record_of_each_key_stays_at_its_offset(desk: PartitionFixture) -> None:
    log = log_with_updates(desk)
    before = read_all(log)
    assert len(log.segments) > 3
    report = compact(log)
    assert report is not None
    after = read_all(log)
    assert sorted(after.records) == [56, 57, 58, 59, 60]
    assert after.records.items() <= before.records.items()
    assert after.newest_by_key() == before.newest_by_key()
    assert_unbroken(log)
    assert len(log.segments) == 2
    assert report.records_removed == 56
    assert compact(log) is None


def test_the_size_of_the_log_depends_on_the_number_of_keys_not_of_updates(desk: PartitionFixture) -> None:
    log = open_log(desk)
    sizes = []
    for number in range(600):
        put(log, (b"key-%d" % (number % 10), b"%0100d" % number))
        if number % 40 == 39:
            seal(log)
            compact(log)
            sizes.append(log.size_bytes)
    assert max(sizes) < 4 * min(sizes)
    assert sizes[-1] < 25 * 200 + 600
    assert_unbroken(log)


def test_a_batch_keeps_its_offsets_when_records_in_it_are_removed(desk: PartitionFixture) -> None:
    log = open_log(desk)
    put(log, (b"a", b"1"), (b"b", b"1"), (b"c", b"1"), codec=3)
    put(log, (b"b", b"2"), (b"b", b"3"))
    seal(log)
    compact(log)
    assert read_all(log).records == {
        0: (b"a", b"1"),
        2: (b"c", b"1"),
        4: (b"b", b"3"),
        5: (b"last", b"so that the mark moves on"),
    }
    read_slice = LogReader(log).read(0, 1000)
    headers = [header for _, header in iter_headers(read_slice.data)]
    assert [(h.base_offset, h.last_offset_delta, h.count, h.codec) for h in headers] == [
        (0, 2, 2, 3),
        (3, 1, 1, 0),
    ]


def test_a_read_from_a_removed_offset_continues_after_it(desk: PartitionFixture) -> None:
    log = log_with_updates(desk)
    compact(log)
    for offset in range(log.end_offset):
        found = read_all(log, offset).records
        assert sorted(found) == [kept for kept in (56, 57, 58, 59, 60) if kept >= offset]


def test_after_an_expired_tombstone_is_removed_the_tombstone_horizon_advances(desk: PartitionFixture) -> None:
    log = open_log(desk)
    put(log, (b"a", b"1"), (b"b", b"1"))
    put(log, (b"a", None))
    seal(log)
    compact(log, now_ms=NOW_MS)
    assert read_all(log).records[2] == (b"a", None)
    assert 0 not in read_all(log).records
    assert log.tombstone_horizon == 0
    # No record is new, and no tombstone has expired.
    assert compact(log, now_ms=NOW_MS + 999) is None
    reopened = open_log(desk)
    assert compact(reopened, now_ms=NOW_MS + 1000) is not None
    assert sorted(read_all(reopened).records) == [1, 3]
    assert reopened.tombstone_horizon == 3
    assert open_log(desk).tombstone_horizon == 3
    assert_unbroken(reopened)


def test_removing_a_tombstone_with_a_newer_record_does_not_advance_the_tombstone_horizon(
    desk: PartitionFixture,
) -> None:
    log = open_log(desk, delete_retention_ms=0)
    put(log, (b"a", None))
    put(log, (b"a", b"back"))
    seal(log)
    compact(log)
    compact(log, now_ms=NOW_MS + 10)
    assert sorted(read_all(log).records) == [1, 2]
    assert log.tombstone_horizon == 0


def test_a_horizon_keeps_the_timestamps_of_its_batch(desk: PartitionFixture) -> None:
    log = open_log(desk)
    put(log, (b"a", None), (b"b", b"1"), timestamp_ms=NOW_MS - 5000)
    seal(log)
    compact(log)
    reader = LogReader(log)
    assert offset_for_time(reader.log, NOW_MS - 5000) == (0, NOW_MS - 5000)
    assert offset_for_time(reader.log, NOW_MS - 4999) == (2, NOW_MS)
    compact(log, now_ms=NOW_MS + 1000)
    assert offset_for_time(reader.log, NOW_MS - 5000) == (1, NOW_MS - 5000)
    assert offset_of_max_timestamp(reader.log) == (2, NOW_MS)


def test_records_younger_than_the_minimum_lag_are_not_compacted(desk: PartitionFixture) -> None:
    log = log_with_updates(desk, min_compaction_lag_ms=500)
    assert due(log, NOW_MS + 499) is None
    found = due(log, NOW_MS + 500)
    assert found is not None
    assert found.segments == tuple(log.segments[:-1])


def test_compaction_is_due_once_the_dirty_ratio_is_exceeded(desk: PartitionFixture) -> None:
    log = log_with_updates(desk, min_cleanable_dirty_ratio=0.5)
    assert compact(log) is not None
    put(log, (b"key-0", b"x"))
    seal(log)
    assert due(log, NOW_MS) is None
    for number in range(20):
        put(log, (b"key-%d" % number, b"x" * 40))
    seal(log)
    assert due(log, NOW_MS) is not None


def test_the_maximum_lag_makes_compaction_due_below_the_dirty_ratio(desk: PartitionFixture) -> None:
    log = log_with_updates(desk, min_cleanable_dirty_ratio=1.0, max_compaction_lag_ms=2000)
    assert due(log, NOW_MS + 1999) is None
    found = due(log, NOW_MS + 2000)
    assert found is not None
    assert found.reason == "max.compaction.lag.ms"
    assert not needs_roll(log, NOW_MS + 1999)
    assert needs_roll(log, NOW_MS + 2000)


def test_a_topic_that_is_not_compacted_is_never_due(desk: PartitionFixture) -> None:
    assert due(log_with_updates(desk, cleanup_policy="delete"), NOW_MS) is None


def test_compaction_stops_at_the_first_record_of_an_open_transaction(desk: PartitionFixture) -> None:
    log = open_log(desk)
    for number in range(20):
        put(log, (b"a", b"%d" % number))
    log.roll(NOW_MS)
    first = put(log, (b"a", b"open"), producer=(7, 0, 0), transactional=True)
    for number in range(20):
        put(log, (b"a", b"later-%d" % number))
    seal(log)
    compact(log)
    assert sorted(read_all(log).records) == [19]
    assert log.compacted.clean_offset <= first
    end_transaction(log, 7, 0, committed=True)
    seal(log)
    compact(log)
    assert read_all(log).newest_by_key()[b"a"] == b"later-19"
    assert_unbroken(log)


def test_aborted_records_are_removed_and_do_not_replace_older_records(desk: PartitionFixture) -> None:
    log = open_log(desk)
    put(log, (b"a", b"kept"))
    put(log, (b"a", b"aborted"), (b"b", b"aborted"), producer=(7, 0, 0), transactional=True)
    marker = end_transaction(log, 7, 0, committed=False)
    put(log, (b"c", b"committed"), producer=(7, 0, 2), transactional=True)
    end_transaction(log, 7, 0, committed=True)
    seal(log)
    before = read_all(log)
    compact(log)
    assert read_all(log).records == before.records
    # The marker remains longer than the records, for readers that have the transaction in their list of aborted ones.
    assert log.transactions.aborted_count == 1
    compact(log, now_ms=NOW_MS + 1)
    for turn in range(2, 5):
        put(log, (b"x", b"%d" % turn))
        seal(log)
        compact(log, now_ms=NOW_MS + turn * 1000)
    assert log.transactions.aborted_count == 0
    markers = [
        header.base_offset
        for segment in log.segments
        for header in (h for _, h in iter_headers(segment.file.pread(segment.size, 0)))
        if header.is_control
    ]
    assert marker not in markers
    assert read_all(log).newest_by_key()[b"c"] == b"committed"
    assert read_all(log).newest_by_key()[b"a"] == b"kept"
    reopened = open_log(desk)
    assert reopened.transactions.aborted_count == 0
    assert read_all(reopened).records == read_all(log).records


def test_a_producer_is_restored_from_its_empty_batch_after_its_state_is_lost(desk: PartitionFixture) -> None:
    log = open_log(desk)
    for sequence in range(5):
        put(log, (b"a", b"%d" % sequence), producer=(7, 0, sequence))
    put(log, (b"a", b"newest"))
    seal(log)
    compact(log)
    assert sorted(read_all(log).records) == [5, 6]
    for path in desk.directory.glob("*.state"):
        path.unlink()
    reopened = open_log(desk)
    (producer,) = reopened.producers
    assert producer.batches[-1].last_sequence == 4
    batch_again = put(reopened, (b"a", b"4"), producer=(7, 0, 4))
    assert batch_again == 4
    assert_unbroken(reopened)


def test_a_batch_extended_over_removed_offsets_is_not_replayed_over_a_newer_state(
    desk: PartitionFixture,
) -> None:
    log = open_log(desk)
    put(log, (b"kept", b"1"), producer=(7, 0, 0))
    put(log, (b"kept-too", b"1"), producer=(7, 0, 1))
    for number in range(30):
        put(log, (b"a", b"%d" % number))
    seal(log)
    put(log, (b"newer", b"1"), producer=(7, 0, 2))
    seal(log)
    compact(log)
    for path in sorted(desk.directory.glob("*.state"))[1:]:
        path.unlink()
    reopened = open_log(desk)
    (producer,) = reopened.producers
    assert [batch.last_sequence for batch in producer.batches][-1] == 2


def test_more_keys_than_fit_into_the_map_are_compacted_in_several_runs(desk: PartitionFixture) -> None:
    log = open_log(desk)
    for turn in range(3):
        for number in range(50):
            put(log, (b"key-%d" % number, b"%d-%d" % (turn, number)))
    seal(log)
    before = read_all(log)
    turns = 0
    while (report := compact(log, memory_bytes=20 * KEY_BYTES)) is not None:
        turns += 1
        assert report.keys <= 20
        assert read_all(log).newest_by_key() == before.newest_by_key()
    assert turns > 5
    # Each round has removed the replaced records of the keys that fit into its map.
    assert len(read_all(log).records) < 110
    assert_unbroken(log)


def test_long_keys_with_a_common_prefix_are_distinguished(desk: PartitionFixture) -> None:
    log = open_log(desk)
    stem = b"0123456789abcdef" * 2
    for number in range(20):
        put(log, (stem + b"%d" % (number % 5), b"%d" % number))
    put(log, (stem[:15], b"short"), (stem[:16], b"sixteen"))
    seal(log)
    before = read_all(log)
    compact(log)
    assert read_all(log).newest_by_key() == before.newest_by_key()
    assert len(read_all(log).records) == 8


def test_a_reader_of_a_replaced_segment_can_finish_its_read(desk: PartitionFixture) -> None:
    log = log_with_updates(desk)
    reader = LogReader(log)
    plan = reader.plan(0, 400)
    assert plan is not None
    plan.segment.pin()
    compact(log)
    data = plan.fetch(wait=True)
    assert data is not None
    assert reader.finish(plan, data).next_offset > 0
    plan.segment.unpin()
    assert sorted(read_all(log).records) == [56, 57, 58, 59, 60]


def test_damage_stops_compaction_and_no_file_changes(desk: PartitionFixture) -> None:
    log = log_with_updates(desk)
    path: Path = log.segments[1].path
    files = sorted(p.name for p in desk.directory.iterdir())
    with path.open("r+b") as file:
        file.seek(80)
        file.write(b"\xff")
    with pytest.raises(CorruptBatch) as raised:
        compact(log)
    assert str(path) in str(raised.value)
    assert sorted(p.name for p in desk.directory.iterdir()) == files


def test_an_interrupted_compaction_does_not_change_the_log(desk: PartitionFixture) -> None:
    log = log_with_updates(desk)
    before = read_all(log)
    names = sorted(path.name for path in desk.directory.iterdir())
    compaction = begin_compaction(log)
    assert compaction is not None
    assert due(log, NOW_MS) is None
    compaction.read_keys()
    assert log.compacting is not None
    log.compacting.set()
    with contextlib.suppress(Interrupted):
        run(compaction)
    compaction.end()
    assert read_all(log).records == before.records
    assert sorted(path.name for path in desk.directory.iterdir()) == names
    assert compact(log) is not None


def test_a_deletion_during_compaction_hides_the_records_and_compaction_finishes(
    desk: PartitionFixture,
) -> None:
    log = log_with_updates(desk, cleanup_policy="compact,delete")
    compaction = begin_compaction(log)
    assert compaction is not None
    compaction.read_keys()
    log.delete_before(30)
    run(compaction)
    compaction.end()
    assert log.start_offset == 30
    assert sorted(read_all(log).records) == [56, 57, 58, 59, 60]
    reopened = open_log(desk, cleanup_policy="compact,delete")
    assert (reopened.start_offset, reopened.report.damage) == (30, [])
    assert_unbroken(reopened)


def test_a_log_without_remaining_records_keeps_its_timestamp_for_retention(desk: PartitionFixture) -> None:
    log = open_log(desk, delete_retention_ms=0)
    put(log, (b"a", None), timestamp_ms=NOW_MS - 100)
    seal(log)
    compact(log)
    compact(log, now_ms=NOW_MS + 1)
    assert sorted(read_all(log).records) == [1]
    assert log.segments[0].index.max_timestamp == NOW_MS - 100
    assert offset_of_max_timestamp(log) == (1, NOW_MS)
    assert offset_for_time(log, NOW_MS - 100) == (1, NOW_MS)


def test_a_damaged_progress_file_of_compaction_is_not_trusted(desk: PartitionFixture) -> None:
    log = log_with_updates(desk)
    compact(log)
    with (desk.directory / "compacted").open("r+b") as file:
        file.seek(9)
        file.write(b"\xff")
    reopened = open_log(desk)
    assert reopened.report.damage != []
    assert reopened.tombstone_horizon == reopened.end_offset
    assert newest_by_key(read_all(reopened).records.values()) == read_all(log).newest_by_key()
    assert compact(reopened) is not None


def test_the_maximum_compaction_lag_limits_the_age_of_the_active_segment() -> None:
    assert LogConfig(cleanup_policy="compact", max_compaction_lag_ms=5, segment_ms=10).roll_ms == 5
    assert LogConfig(cleanup_policy="delete", max_compaction_lag_ms=5, segment_ms=10).roll_ms == 10


@pytest.mark.parametrize("with_index", [True, False])
def test_after_any_flipped_bit_in_a_compacted_segment_no_read_returns_a_wrong_record(
    desk: PartitionFixture, with_index: bool
) -> None:
    log = log_with_updates(desk, updates=90, keys=9)
    put(log, (b"x", b"between"), (b"key-1", b"newer"), producer=(7, 0, 0))
    seal(log)
    compact(log)
    path = log.segments[0].path
    content = path.read_bytes()
    written = read_all(log).records
    log.close()
    headers = [position for position, _ in iter_headers(content)]
    flips = [
        (at + byte, bit) for at in headers for byte in (6, 7, 10, 11, 12, 15, 26, 40) for bit in range(8)
    ]
    caught = 0
    for archived, bit in flips:
        path.write_bytes(content[:archived] + bytes([content[archived] ^ 1 << bit]) + content[archived + 1 :])
        if not with_index:
            path.with_suffix(".index").unlink(missing_ok=True)
        reopened = open_log(desk)
        reader, offset = LogReader(reopened), 0
        while offset < reopened.high_watermark:
            try:
                read_slice = reader.read(offset, 250)
            except CorruptBatch:
                caught += 1
                offset += 1
                continue
            for position, header in iter_headers(read_slice.data):
                for record in open_batch(
                    read_slice.data[position : position + header.size], RecordLimits()
                ).records:
                    found = header.base_offset + record.offset
                    assert found < offset or written.get(found) == (record.key, record.value), (archived, bit)
            offset = read_slice.next_offset
        for segment in reopened.segments:
            segment.close()
    assert caught > len(flips)
