"""The record with the greatest timestamp, where the log starts in the midst of a batch, and while it is compacted."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from headrace.files import SystemFiles
from headrace.log import times
from headrace.log.partition import PartitionLog
from headrace.log.segment import ReadableSegment
from headrace.log.times import Greatest, TimeSearch
from headrace.records import read_header
from tests.support.batches import batch

from .archives import InFolder, Place, archive_now
from .by_time import offset_of_max_timestamp
from .compacting import COMPACTING, compact, seal
from .conftest import NOW_MS, Desk

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
    made = bytearray(batch(count, codec=codec, first_ms=first_ms, step_ms=step_ms, key=key))
    log.append(made, read_header(made), first_ms, NOW_MS)


def falling(log: PartitionLog, codec: str) -> None:
    """A batch whose records, at the offsets 0 to 2, have ever smaller timestamps."""
    put(log, count=3, first_ms=NOW_MS, step_ms=-10, codec=codec)


@codecs
def test_a_record_below_the_start_of_the_log_is_not_the_latest(desk: Desk, codec: str) -> None:
    log = desk.open()
    falling(log, codec)
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
def test_the_batch_in_which_the_log_starts_counts_by_the_records_that_are_left(
    desk: Desk, codec: str, later_ms: int, latest: int
) -> None:
    log = desk.open()
    falling(log, codec)
    put(log, first_ms=later_ms, codec=codec)
    log.sync_now()
    log.delete_before(1)
    assert offset_of_max_timestamp(log) == (latest, max(later_ms, NOW_MS - 10))


@codecs
@pytest.mark.parametrize(("later_ms", "latest"), [(NOW_MS - 5, 3), (NOW_MS - 15, 1)])
def test_in_the_archive_a_batch_counts_by_the_records_that_are_left_as_well(
    tmp_path: Path, codec: str, later_ms: int, latest: int
) -> None:
    log = Place(tmp_path, SystemFiles(), InFolder(tmp_path / "archive", SystemFiles())).open()
    falling(log, codec)
    put(log, first_ms=later_ms, codec=codec)
    for _ in range(40):
        put(log, first_ms=NOW_MS - 1_000)
    log.sync_now()
    assert archive_now(log) > 0
    assert log.local_start_offset > 3
    log.delete_before(1)
    assert offset_of_max_timestamp(log) == (latest, max(later_ms, NOW_MS - 10))


@codecs
def test_a_batch_is_unpacked_from_the_file_in_which_it_was_found_though_a_compaction_replaces_it(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, codec: str
) -> None:
    log = desk.open(config=COMPACTING)
    # Below the start of the log: the segment's greatest timestamp is that of no record, so its headers are gone over.
    put(log, first_ms=NOW_MS + 100, codec=codec)
    for _ in range(2):
        put(log, first_ms=NOW_MS, codec=codec)
    put(log, first_ms=NOW_MS + 50, codec=codec, key=b"latest")
    for _ in range(20):
        put(log, first_ms=NOW_MS, codec=codec)
    seal(log)
    log.delete_before(1)
    found_in, look = log.segments[0], TimeSearch.greatest_in
    compacted = []

    def look_and_compact(search: TimeSearch, segment: ReadableSegment, so_far: Greatest) -> Greatest:
        found = look(search, segment, so_far)
        if found.batch is not None and found.batch.header.base_offset == 3 and not compacted:
            compacted.append(found.batch)
            asyncio.get_running_loop().call_soon(compact, log)
        return found

    monkeypatch.setattr(times, "_HEADERS_AT_ONCE", 4)
    monkeypatch.setattr(TimeSearch, "greatest_in", look_and_compact)
    assert offset_of_max_timestamp(log) == (3, NOW_MS + 50)
    assert [one.segment for one in compacted] == [found_in]
    assert log.segments[0] is not found_in
    assert log.segments[0].path == found_in.path
    assert found_in._file is None
