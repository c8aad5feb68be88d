"""Searches for the record with the greatest timestamp, in a log that starts in the middle of a batch, and during a
compaction.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from headrace.files import SystemFiles
from headrace.log import times
from headrace.log.partition import PartitionLog
from headrace.log.segment import ReadableSegment
from headrace.log.times import GreatestTimestampScan, TimeSearch
from headrace.records import read_header
from tests.support.batches import batch

from .archives import ArchivedPartition, InFolder, archive_now
from .by_time import offset_of_max_timestamp
from .compaction_runs import COMPACTED_TOPIC, compact, seal
from .conftest import NOW_MS, PartitionFixture

codecs = pytest.mark.parametrize("codec", ["none", "zstd"])


def put(
    log: PartitionLog,
    *,
    count: int = 1,
    first_ms: int,
    step_ms: int = 0,
    codec: str = "none",
    key: bytes = b"key",
) -> None:
    built = bytearray(batch(count, codec=codec, first_ms=first_ms, step_ms=step_ms, key=key))
    log.append(built, read_header(built), first_ms, NOW_MS)


def append_decreasing_timestamps(log: PartitionLog, codec: str) -> None:
    """A batch whose records, at offsets 0 to 2, have decreasing timestamps."""
    put(log, count=3, first_ms=NOW_MS, step_ms=-10, codec=codec)


@codecs
def test_the_greatest_timestamp_ignores_records_below_the_start_offset(
    desk: PartitionFixture, codec: str
) -> None:
    log = desk.open()
    append_decreasing_timestamps(log, codec)
    log.sync_now()
    assert offset_of_max_timestamp(log) == (0, NOW_MS)
    log.delete_before(1)
    assert offset_of_max_timestamp(log) == (1, NOW_MS - 10)
    log.delete_before(2)
    assert offset_of_max_timestamp(log) == (2, NOW_MS - 20)
    log.delete_before(3)
    assert offset_of_max_timestamp(log) is None


@codecs
@pytest.mark.parametrize(("later_ms", "latest"), [(NOW_MS - 5, 3), (NOW_MS - 10, 1), (NOW_MS - 15, 1)])
def test_the_greatest_timestamp_ignores_deleted_records_of_the_first_batch(
    desk: PartitionFixture, codec: str, later_ms: int, latest: int
) -> None:
    log = desk.open()
    append_decreasing_timestamps(log, codec)
    put(log, first_ms=later_ms, codec=codec)
    log.sync_now()
    log.delete_before(1)
    assert offset_of_max_timestamp(log) == (latest, max(later_ms, NOW_MS - 10))


@codecs
@pytest.mark.parametrize(("later_ms", "latest"), [(NOW_MS - 5, 3), (NOW_MS - 15, 1)])
def test_the_greatest_timestamp_ignores_deleted_records_of_an_archived_first_batch(
    tmp_path: Path, codec: str, later_ms: int, latest: int
) -> None:
    log = ArchivedPartition(tmp_path, SystemFiles(), InFolder(tmp_path / "archive", SystemFiles())).open()
    append_decreasing_timestamps(log, codec)
    put(log, first_ms=later_ms, codec=codec)
    for _ in range(40):
        put(log, first_ms=NOW_MS - 1_000)
    log.sync_now()
    assert archive_now(log) > 0
    assert log.local_start_offset > 3
    log.delete_before(1)
    assert offset_of_max_timestamp(log) == (latest, max(later_ms, NOW_MS - 10))


@codecs
def test_a_batch_found_before_a_compaction_is_decompressed_from_the_old_file(
    desk: PartitionFixture, monkeypatch: pytest.MonkeyPatch, codec: str
) -> None:
    log = desk.open(config=COMPACTED_TOPIC)
    # This record will be below the start of the log. Then the segment's greatest timestamp belongs to a deleted record,
    # so the headers of the segment are searched.
    put(log, first_ms=NOW_MS + 100, codec=codec)
    for _ in range(2):
        put(log, first_ms=NOW_MS, codec=codec)
    put(log, first_ms=NOW_MS + 50, codec=codec, key=b"latest")
    for _ in range(20):
        put(log, first_ms=NOW_MS, codec=codec)
    seal(log)
    log.delete_before(1)
    found_in, scan_segment = log.segments[0], TimeSearch.scan_segment
    compacted = []

    def find_and_compact(
        search: TimeSearch, segment: ReadableSegment, so_far: GreatestTimestampScan
    ) -> GreatestTimestampScan:
        found = scan_segment(search, segment, so_far)
        if found.batch is not None and found.batch.header.base_offset == 3 and not compacted:
            compacted.append(found.batch)
            asyncio.get_running_loop().call_soon(compact, log)
        return found

    monkeypatch.setattr(times, "_HEADERS_AT_ONCE", 4)
    monkeypatch.setattr(TimeSearch, "scan_segment", find_and_compact)
    assert offset_of_max_timestamp(log) == (3, NOW_MS + 50)
    assert [compaction.segment for compaction in compacted] == [found_in]
    assert log.segments[0] is not found_in
    assert log.segments[0].path == found_in.path
    assert found_in._file is None
