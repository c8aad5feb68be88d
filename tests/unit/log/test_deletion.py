from __future__ import annotations

from collections.abc import Callable

import pytest

from headrace.errors import OffsetOutOfRange
from headrace.log.config import LogConfig
from headrace.log.partition import PartitionLog
from headrace.log.reader import LogReader
from headrace.log.retention import trim
from tests.unit.log.conftest import NOW_MS, Desk, append, values_from

Filled = Callable[..., PartitionLog]


def test_an_offset_outside_the_log_is_an_error_that_names_the_range(filled: Filled) -> None:
    log = filled()
    log.delete_before(50)
    with pytest.raises(OffsetOutOfRange) as raised:
        LogReader(log).read(10, 100)
    assert "50 to 120" in str(raised.value)
    assert "10 to 49" in str(raised.value)
    with pytest.raises(OffsetOutOfRange):
        LogReader(log).read(121, 100)


def test_deleted_records_stay_deleted_after_a_kill(filled: Filled, desk: Desk) -> None:
    log = filled()
    assert log.delete_before(50) == 50
    again = desk.open()
    assert again.start_offset == 50
    assert sorted(values_from(again))[0] <= 50
    assert again.segments[0].end_offset > 50


def test_retention_by_size_deletes_whole_old_segments_only(filled: Filled, desk: Desk) -> None:
    log = filled(config=LogConfig(segment_bytes=1000, retention_bytes=2500, retention_ms=-1))
    before = log.size_bytes
    trimmed = trim(log, NOW_MS)
    assert trimmed is not None
    assert trimmed.reason == "retention.bytes"
    assert log.start_offset == log.segments[0].base_offset == trimmed.next_offset
    assert 2500 <= log.size_bytes < 2500 + 1000
    assert before - log.size_bytes == trimmed.bytes
    assert trim(log, NOW_MS) is None
    assert len(list(desk.directory.glob("*.log"))) == len(log.segments)


def test_retention_by_time_takes_also_the_newest_data_when_it_is_too_old(filled: Filled) -> None:
    log = filled(config=LogConfig(segment_bytes=2000, retention_ms=1000))
    assert trim(log, NOW_MS + 900) is None
    assert trim(log, NOW_MS + 39 + 1001) is not None
    assert (log.start_offset, log.end_offset, len(log.segments)) == (120, 120, 1)
    assert append(log, b"next").base_offset == 120


def test_deletion_that_overtakes_the_syncs_keeps_what_lies_behind_it(desk: Desk) -> None:
    log = desk.open(waits_for_sync=False)
    for number in range(120):
        append(log, b"value-%d" % number)
    assert log.delete_before(100) == 100
    assert log.segments[0].base_offset > 0
    append(log, b"last")
    again = desk.open(waits_for_sync=False)
    assert (again.start_offset, again.end_offset) == (100, 121)
    assert again.report.damage == []
    assert values_from(again)[100] == b"value-100"
    assert values_from(again)[120] == b"last"


def test_a_sync_that_ends_behind_a_deletion_takes_nothing_back(desk: Desk) -> None:
    log = desk.open(waits_for_sync=False)
    append(log, b"first")
    job = log.begin_sync()
    assert job is not None
    for number in range(1, 120):
        append(log, b"value-%d" % number)
    log.delete_before(100)
    job.run()
    log.end_sync(job, None)
    append(log, b"last")
    again = desk.open(waits_for_sync=False)
    assert (again.start_offset, again.end_offset, again.report.damage) == (100, 121, [])


def test_a_start_after_everything_was_deleted_finds_no_damage(filled: Filled, desk: Desk) -> None:
    log = filled(config=LogConfig(segment_bytes=2000, retention_ms=1000))
    assert trim(log, NOW_MS + 10**6) is not None
    again = desk.open()
    assert (again.start_offset, again.end_offset, again.report.damage) == (120, 120, [])


def test_where_less_was_kept_than_deleted_the_log_goes_on_at_its_start(desk: Desk) -> None:
    log = desk.open(waits_for_sync=False)
    for number in range(120):
        append(log, b"value-%d" % number)
    log.delete_before(100)
    for path in desk.directory.glob("*.log"):
        path.write_bytes(b"")
    again = desk.open(waits_for_sync=False)
    assert (again.start_offset, again.end_offset) == (100, 100)
    assert append(again, b"next").base_offset == 100
    assert values_from(again) == {100: b"next"}


def test_a_compacted_topic_is_not_trimmed_by_time(filled: Filled) -> None:
    log = filled(config=LogConfig(cleanup_policy="compact", retention_ms=1))
    assert trim(log, NOW_MS + 10**9) is None
