from __future__ import annotations

from collections.abc import Callable

import pytest

from headrace.errors import OffsetOutOfRange
from headrace.log.config import LogConfig
from headrace.log.partition import PartitionLog
from headrace.log.reader import LogReader
from headrace.log.retention import trim
from tests.unit.log.conftest import NOW_MS, PartitionFixture, append, values_from

Filled = Callable[..., PartitionLog]


def test_a_read_outside_the_log_raises_an_error_with_the_valid_range(filled: Filled) -> None:
    log = filled()
    log.delete_before(50)
    with pytest.raises(OffsetOutOfRange) as raised:
        LogReader(log).read(10, 100)
    assert "starts at 50 and ends at 120" in str(raised.value)
    assert "10 to 49" in str(raised.value)
    with pytest.raises(OffsetOutOfRange):
        LogReader(log).read(121, 100)


def test_deleted_records_stay_deleted_after_a_kill(filled: Filled, desk: PartitionFixture) -> None:
    log = filled()
    assert log.delete_before(50) == 50
    reopened = desk.open()
    assert reopened.start_offset == 50
    assert sorted(values_from(reopened))[0] <= 50
    assert reopened.segments[0].end_offset > 50


def test_retention_by_size_deletes_only_complete_old_segments(filled: Filled, desk: PartitionFixture) -> None:
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


def test_retention_by_time_also_deletes_the_newest_segment(filled: Filled) -> None:
    log = filled(config=LogConfig(segment_bytes=2000, retention_ms=1000))
    assert trim(log, NOW_MS + 900) is None
    assert trim(log, NOW_MS + 39 + 1001) is not None
    assert (log.start_offset, log.end_offset, len(log.segments)) == (120, 120, 1)
    assert append(log, b"next").base_offset == 120


def test_a_deletion_beyond_the_synced_offset_keeps_later_records(desk: PartitionFixture) -> None:
    log = desk.open(waits_for_sync=False)
    for number in range(120):
        append(log, b"value-%d" % number)
    assert log.delete_before(100) == 100
    assert log.segments[0].base_offset > 0
    append(log, b"last")
    reopened = desk.open(waits_for_sync=False)
    assert (reopened.start_offset, reopened.end_offset) == (100, 121)
    assert reopened.report.damage == []
    assert values_from(reopened)[100] == b"value-100"
    assert values_from(reopened)[120] == b"last"


def test_a_sync_that_ends_after_a_deletion_does_not_revert_it(desk: PartitionFixture) -> None:
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
    reopened = desk.open(waits_for_sync=False)
    assert (reopened.start_offset, reopened.end_offset, reopened.report.damage) == (100, 121, [])


def test_a_log_whose_records_were_all_deleted_opens_without_damage(
    filled: Filled, desk: PartitionFixture
) -> None:
    log = filled(config=LogConfig(segment_bytes=2000, retention_ms=1000))
    assert trim(log, NOW_MS + 10**6) is not None
    reopened = desk.open()
    assert (reopened.start_offset, reopened.end_offset, reopened.report.damage) == (120, 120, [])


def test_a_log_that_ends_below_its_start_offset_continues_at_its_start_offset(desk: PartitionFixture) -> None:
    log = desk.open(waits_for_sync=False)
    for number in range(120):
        append(log, b"value-%d" % number)
    log.delete_before(100)
    for path in desk.directory.glob("*.log"):
        path.write_bytes(b"")
    reopened = desk.open(waits_for_sync=False)
    assert (reopened.start_offset, reopened.end_offset) == (100, 100)
    assert append(reopened, b"next").base_offset == 100
    assert values_from(reopened) == {100: b"next"}


def test_a_compacted_topic_is_not_trimmed_by_time(filled: Filled) -> None:
    log = filled(config=LogConfig(cleanup_policy="compact", retention_ms=1))
    assert trim(log, NOW_MS + 10**9) is None
