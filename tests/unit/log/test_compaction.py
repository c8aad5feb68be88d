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
from tests.unit.log.compacting import (
    COMPACTING,
    assert_unbroken,
    began,
    compact,
    end_transaction,
    fold,
    put,
    read_all,
    run,
    seal,
)
from tests.unit.log.conftest import NOW_MS, Desk

from .by_time import offset_for_time, offset_of_max_timestamp


def opened(desk: Desk, **changes: object) -> PartitionLog:
    return desk.open(config=replace(COMPACTING, **changes))  # type: ignore[arg-type]


def churned(desk: Desk, updates: int = 60, keys: int = 4, **changes: object) -> PartitionLog:
    log = opened(desk, **changes)
    for number in range(updates):
        put(log, (b"key-%d" % (number % keys), b"value-%d" % number))
    seal(log)
    return log


def test_the_newest_record_of_each_key_stays_at_its_offset(desk: Desk) -> None:
    log = churned(desk)
    before = read_all(log)
    assert len(log.segments) > 3
    report = compact(log)
    assert report is not None
    after = read_all(log)
    assert sorted(after.records) == [56, 57, 58, 59, 60]
    assert after.records.items() <= before.records.items()
    assert after.fold() == before.fold()
    assert_unbroken(log)
    assert len(log.segments) == 2
    assert report.records_removed == 56
    assert compact(log) is None


def test_the_size_follows_the_live_keys_under_heavy_update(desk: Desk) -> None:
    log = opened(desk)
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


def test_a_batch_keeps_its_offsets_when_records_inside_it_go(desk: Desk) -> None:
    log = opened(desk)
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
    piece = LogReader(log).read(0, 1000)
    headers = [header for _, header in iter_headers(piece.data)]
    assert [(h.base_offset, h.last_offset_delta, h.count, h.codec) for h in headers] == [
        (0, 2, 2, 3),
        (3, 1, 1, 0),
    ]


def test_a_read_from_an_offset_that_went_away_goes_on_behind_it(desk: Desk) -> None:
    log = churned(desk)
    compact(log)
    for offset in range(log.end_offset):
        found = read_all(log, offset).records
        assert sorted(found) == [kept for kept in (56, 57, 58, 59, 60) if kept >= offset]


def test_a_deletion_stays_until_it_expires_and_readers_that_were_away_can_tell(desk: Desk) -> None:
    log = opened(desk)
    put(log, (b"a", b"1"), (b"b", b"1"))
    put(log, (b"a", None))
    seal(log)
    compact(log, now_ms=NOW_MS)
    assert read_all(log).records[2] == (b"a", None)
    assert 0 not in read_all(log).records
    assert log.tombstone_horizon == 0
    # Nothing is new and nothing has expired.
    assert compact(log, now_ms=NOW_MS + 999) is None
    again = opened(desk)
    assert compact(again, now_ms=NOW_MS + 1000) is not None
    assert sorted(read_all(again).records) == [1, 3]
    assert again.tombstone_horizon == 3
    assert opened(desk).tombstone_horizon == 3
    assert_unbroken(again)


def test_a_deletion_that_was_followed_by_a_newer_record_makes_nobody_start_anew(desk: Desk) -> None:
    log = opened(desk, delete_retention_ms=0)
    put(log, (b"a", None))
    put(log, (b"a", b"back"))
    seal(log)
    compact(log)
    compact(log, now_ms=NOW_MS + 10)
    assert sorted(read_all(log).records) == [1, 2]
    assert log.tombstone_horizon == 0


def test_a_horizon_keeps_the_timestamps_of_its_batch(desk: Desk) -> None:
    log = opened(desk)
    put(log, (b"a", None), (b"b", b"1"), timestamp_ms=NOW_MS - 5000)
    seal(log)
    compact(log)
    reader = LogReader(log)
    assert offset_for_time(reader.log, NOW_MS - 5000) == (0, NOW_MS - 5000)
    assert offset_for_time(reader.log, NOW_MS - 4999) == (2, NOW_MS)
    compact(log, now_ms=NOW_MS + 1000)
    assert offset_for_time(reader.log, NOW_MS - 5000) == (1, NOW_MS - 5000)
    assert offset_of_max_timestamp(reader.log) == (2, NOW_MS)


def test_records_younger_than_the_least_lag_are_left_alone(desk: Desk) -> None:
    log = churned(desk, min_compaction_lag_ms=500)
    assert due(log, NOW_MS + 499) is None
    found = due(log, NOW_MS + 500)
    assert found is not None
    assert found.segments == tuple(log.segments[:-1])


def test_nothing_is_due_before_the_share_of_new_bytes_is_passed(desk: Desk) -> None:
    log = churned(desk, min_cleanable_dirty_ratio=0.5)
    assert compact(log) is not None
    put(log, (b"key-0", b"x"))
    seal(log)
    assert due(log, NOW_MS) is None
    for number in range(20):
        put(log, (b"key-%d" % number, b"x" * 40))
    seal(log)
    assert due(log, NOW_MS) is not None


def test_the_greatest_lag_seals_and_compacts_what_the_share_would_not(desk: Desk) -> None:
    log = churned(desk, min_cleanable_dirty_ratio=1.0, max_compaction_lag_ms=2000)
    assert due(log, NOW_MS + 1999) is None
    found = due(log, NOW_MS + 2000)
    assert found is not None
    assert found.reason == "max.compaction.lag.ms"
    assert not needs_roll(log, NOW_MS + 1999)
    assert needs_roll(log, NOW_MS + 2000)


def test_a_topic_that_is_not_compacted_is_never_due(desk: Desk) -> None:
    assert due(churned(desk, cleanup_policy="delete"), NOW_MS) is None


def test_an_open_transaction_holds_compaction_up_from_its_first_record_on(desk: Desk) -> None:
    log = opened(desk)
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
    assert read_all(log).fold()[b"a"] == b"later-19"
    assert_unbroken(log)


def test_what_was_aborted_goes_and_replaces_nothing(desk: Desk) -> None:
    log = opened(desk)
    put(log, (b"a", b"kept"))
    put(log, (b"a", b"aborted"), (b"b", b"aborted"), producer=(7, 0, 0), transactional=True)
    marker = end_transaction(log, 7, 0, committed=False)
    put(log, (b"c", b"committed"), producer=(7, 0, 2), transactional=True)
    end_transaction(log, 7, 0, committed=True)
    seal(log)
    before = read_all(log)
    compact(log)
    assert read_all(log).records == before.records
    # The marker outlives the records, until readers that were told of the transaction have passed.
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
    assert read_all(log).fold()[b"c"] == b"committed"
    assert read_all(log).fold()[b"a"] == b"kept"
    again = opened(desk)
    assert again.transactions.aborted_count == 0
    assert read_all(again).records == read_all(log).records


def test_a_producer_is_known_by_an_empty_batch_when_its_state_is_lost(desk: Desk) -> None:
    log = opened(desk)
    for sequence in range(5):
        put(log, (b"a", b"%d" % sequence), producer=(7, 0, sequence))
    put(log, (b"a", b"newest"))
    seal(log)
    compact(log)
    assert sorted(read_all(log).records) == [5, 6]
    for path in desk.directory.glob("*.state"):
        path.unlink()
    again = opened(desk)
    (producer,) = again.producers
    assert producer.batches[-1].last_sequence == 4
    batch_again = put(again, (b"a", b"4"), producer=(7, 0, 4))
    assert batch_again == 4
    assert_unbroken(again)


def test_a_batch_that_was_stretched_is_not_replayed_over_a_newer_state(desk: Desk) -> None:
    log = opened(desk)
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
    again = opened(desk)
    (producer,) = again.producers
    assert [batch.last_sequence for batch in producer.batches][-1] == 2


def test_more_keys_than_the_map_holds_take_several_turns_and_lose_nothing(desk: Desk) -> None:
    log = opened(desk)
    for turn in range(3):
        for number in range(50):
            put(log, (b"key-%d" % number, b"%d-%d" % (turn, number)))
    seal(log)
    before = read_all(log)
    turns = 0
    while (report := compact(log, memory_bytes=20 * KEY_BYTES)) is not None:
        turns += 1
        assert report.keys <= 20
        assert read_all(log).fold() == before.fold()
    assert turns > 5
    # Each turn has replaced what it could know of.
    assert len(read_all(log).records) < 110
    assert_unbroken(log)


def test_long_keys_that_begin_alike_are_told_apart(desk: Desk) -> None:
    log = opened(desk)
    stem = b"0123456789abcdef" * 2
    for number in range(20):
        put(log, (stem + b"%d" % (number % 5), b"%d" % number))
    put(log, (stem[:15], b"short"), (stem[:16], b"sixteen"))
    seal(log)
    before = read_all(log)
    compact(log)
    assert read_all(log).fold() == before.fold()
    assert len(read_all(log).records) == 8


def test_a_reader_that_holds_an_old_segment_reads_on_in_it(desk: Desk) -> None:
    log = churned(desk)
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


def test_damage_stops_compaction_and_stays_where_it_is(desk: Desk) -> None:
    log = churned(desk)
    path: Path = log.segments[1].path
    files = sorted(p.name for p in desk.directory.iterdir())
    with path.open("r+b") as file:
        file.seek(80)
        file.write(b"\xff")
    with pytest.raises(CorruptBatch) as raised:
        compact(log)
    assert str(path) in str(raised.value)
    assert sorted(p.name for p in desk.directory.iterdir()) == files


def test_an_interrupted_compaction_leaves_the_log_as_it_was(desk: Desk) -> None:
    log = churned(desk)
    before = read_all(log)
    names = sorted(path.name for path in desk.directory.iterdir())
    compaction = began(log)
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


def test_a_deletion_by_retention_during_compaction_keeps_the_files_until_it_ends(desk: Desk) -> None:
    log = churned(desk, cleanup_policy="compact,delete")
    compaction = began(log)
    assert compaction is not None
    compaction.read_keys()
    log.delete_before(30)
    run(compaction)
    compaction.end()
    assert log.start_offset == 30
    assert sorted(read_all(log).records) == [56, 57, 58, 59, 60]
    again = opened(desk, cleanup_policy="compact,delete")
    assert (again.start_offset, again.report.damage) == (30, [])
    assert_unbroken(again)


def test_a_log_without_any_record_left_still_has_an_age(desk: Desk) -> None:
    log = opened(desk, delete_retention_ms=0)
    put(log, (b"a", None), timestamp_ms=NOW_MS - 100)
    seal(log)
    compact(log)
    compact(log, now_ms=NOW_MS + 1)
    assert sorted(read_all(log).records) == [1]
    assert log.segments[0].index.max_timestamp == NOW_MS - 100
    assert offset_of_max_timestamp(log) == (1, NOW_MS)
    assert offset_for_time(log, NOW_MS - 100) == (1, NOW_MS)


def test_what_compaction_noted_is_not_trusted_when_it_is_damaged(desk: Desk) -> None:
    log = churned(desk)
    compact(log)
    with (desk.directory / "compacted").open("r+b") as file:
        file.seek(9)
        file.write(b"\xff")
    again = opened(desk)
    assert again.report.damage != []
    assert again.tombstone_horizon == again.end_offset
    assert fold(read_all(again).records.values()) == read_all(log).fold()
    assert compact(again) is not None


def test_a_segment_of_a_compacted_topic_is_sealed_in_time_for_its_lag() -> None:
    assert LogConfig(cleanup_policy="compact", max_compaction_lag_ms=5, segment_ms=10).roll_ms == 5
    assert LogConfig(cleanup_policy="delete", max_compaction_lag_ms=5, segment_ms=10).roll_ms == 10


@pytest.mark.parametrize("with_index", [True, False])
def test_no_flipped_bit_in_a_compacted_segment_gives_an_offset_another_record(
    desk: Desk, with_index: bool
) -> None:
    log = churned(desk, updates=90, keys=9)
    put(log, (b"x", b"between"), (b"key-1", b"newer"), producer=(7, 0, 0))
    seal(log)
    compact(log)
    path = log.segments[0].path
    content = path.read_bytes()
    written = read_all(log).records
    log.close()
    headers = [position for position, _ in iter_headers(content)]
    places = [
        (at + byte, bit) for at in headers for byte in (6, 7, 10, 11, 12, 15, 26, 40) for bit in range(8)
    ]
    caught = 0
    for place, bit in places:
        path.write_bytes(content[:place] + bytes([content[place] ^ 1 << bit]) + content[place + 1 :])
        if not with_index:
            path.with_suffix(".index").unlink(missing_ok=True)
        again = opened(desk)
        reader, offset = LogReader(again), 0
        while offset < again.high_watermark:
            try:
                piece = reader.read(offset, 250)
            except CorruptBatch:
                caught += 1
                offset += 1
                continue
            for position, header in iter_headers(piece.data):
                for record in open_batch(
                    piece.data[position : position + header.size], RecordLimits()
                ).records:
                    found = header.base_offset + record.offset
                    assert found < offset or written.get(found) == (record.key, record.value), (place, bit)
            offset = piece.next_offset
        for segment in again.segments:
            segment.close()
    assert caught > len(places)
