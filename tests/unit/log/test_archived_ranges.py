"""Every read of an archived segment uses small range requests, also when the segment is damaged."""

from __future__ import annotations

import random
import re
from pathlib import Path

import pytest

from headrace.errors import ArchiveUnavailable, CorruptBatch
from headrace.files import SystemFiles
from headrace.log import archive_bucket, reader, scan
from headrace.log.archive_bucket import PART_BYTES, BucketStore
from headrace.log.config import LogConfig
from headrace.log.partition import PartitionLog
from headrace.log.reader import LogReader
from tests.support.s3 import S3Server
from tests.unit.log.archives import ArchivedPartition, InBucket, archive_now
from tests.unit.log.by_time import offset_for_time
from tests.unit.log.conftest import NOW_MS, append

BLOCK, PART = 4096, 16384


def ranges(s3: S3Server, bucket: str) -> list[int]:
    """The number of bytes of each range request for a log file."""
    matches = [re.search(r"\.log/\d+ bytes=(\d+)-(\d+)", line) for line in s3.requests(bucket)]
    return [int(match[2]) - int(match[1]) + 1 for match in matches if match]


class LargeArchivedSegment:
    """One archived segment of many blocks; a batch has about a tenth of a block."""

    def __init__(self, directory: Path, s3: S3Server) -> None:
        self.s3 = s3
        self.archive = InBucket(s3)
        self.log: PartitionLog = ArchivedPartition(directory, SystemFiles(), self.archive).open()
        self.log.config = LogConfig(
            segment_bytes=64 * BLOCK, index_interval_bytes=BLOCK, retention_bytes=0, is_archived=True
        )
        chance = random.Random(1)
        while len(self.log.segments) == 1:
            append(self.log, chance.randbytes(400), timestamp_ms=NOW_MS + self.log.end_offset)
        self.log.sync_now()
        plan = LogReader(self.log).plan(20, 0)
        assert plan is not None
        self.position_of_20 = plan.position
        assert archive_now(self.log) == 1
        self.size = self.log.archive.segments[0].size
        self._before = len(ranges(s3, self.archive.bucket))

    def requested(self) -> list[int]:
        """Sizes of the ranges requested after the move. (The move itself reads the whole copy back.)"""
        return ranges(self.s3, self.archive.bucket)[self._before :]


@pytest.fixture
def large(tmp_path: Path, s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> LargeArchivedSegment:
    monkeypatch.setattr(archive_bucket, "BLOCK_BYTES", BLOCK)
    monkeypatch.setattr(archive_bucket, "PART_BYTES", PART)
    monkeypatch.setattr(scan, "_WINDOW", BLOCK)
    return LargeArchivedSegment(tmp_path, s3)


def test_a_read_and_a_lookup_by_time_need_few_blocks(large: LargeArchivedSegment) -> None:
    middle = large.log.local_start_offset // 2
    assert LogReader(large.log).read(middle, 600).next_offset > middle
    assert 0 < sum(large.requested()) <= 4 * BLOCK
    offset_wanted = 2 * middle - 2
    assert offset_for_time(large.log, NOW_MS + offset_wanted) == (offset_wanted, NOW_MS + offset_wanted)
    assert sum(large.requested()) <= 8 * BLOCK


def test_a_sequential_reader_requests_each_block_once(large: LargeArchivedSegment) -> None:
    log_reader, offset = LogReader(large.log), 0
    while offset < large.log.local_start_offset:
        offset = log_reader.read(offset, 1_000).next_offset
    assert large.size <= sum(large.requested()) <= large.size + BLOCK


def test_a_damaged_batch_length_does_not_cause_a_large_read(
    large: LargeArchivedSegment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader, "ARCHIVED_BYTES_MAX", 2 * BLOCK)
    # Change the third of the four length bytes: the wrong length still fits into the segment.
    number, position_in_part = divmod(large.position_of_20 + 10, PART)
    large.s3.change(large.archive.bucket, f"cluster/topic/0/{0:020d}.log/{number:05d}", position_in_part)
    before = len(large.requested())
    with pytest.raises(CorruptBatch, match="the next batch does not begin at its end"):
        LogReader(large.log).read(20, 1_000)
    assert sum(large.requested()[before:]) <= 4 * BLOCK
    assert LogReader(large.log).read(21, 1_000).next_offset > 21


def test_a_missing_part_in_the_middle_is_not_treated_as_the_end_of_the_log(
    large: LargeArchivedSegment,
) -> None:
    end = large.log.local_start_offset
    # All batches have about the same size.
    inside = end * 5 * PART // (2 * large.size)
    large.s3.delete(large.archive.bucket, f"cluster/topic/0/{0:020d}.log/00002")
    with pytest.raises(ArchiveUnavailable, match=r"read \d+ of \d+ bytes at byte \d+"):
        LogReader(large.log).read(inside, 1_000)
    with pytest.raises(ArchiveUnavailable):
        offset_for_time(large.log, NOW_MS + inside)
    assert LogReader(large.log).read(0, 1_000).next_offset > 0
    assert LogReader(large.log).read(end - 1, 1_000).next_offset == end


def test_no_index_is_built_from_a_log_with_a_missing_part(large: LargeArchivedSegment) -> None:
    for key in large.s3.objects(large.archive.bucket):
        if ".index/" in key or key.endswith(".log/00002"):
            large.s3.delete(large.archive.bucket, key)
    with pytest.raises(ArchiveUnavailable):
        LogReader(large.log).read(0, 1_000)


def test_a_part_is_uploaded_with_one_put_request(s3: S3Server) -> None:
    bucket = s3.fresh_bucket()
    store = BucketStore(s3.address(bucket), "cluster")
    size = PART_BYTES + 5
    store.put("topic/0/one.log", (bytes(1 << 20) for _ in range(8)), PART_BYTES)
    store.put("topic/0/one.log", iter([bytes(PART_BYTES), bytes(5)]), size)
    puts = [line for line in s3.requests(bucket) if line.startswith(("PUT", "POST"))]
    assert not [line for line in puts if "upload" in line]
    assert s3.objects(bucket) == {
        "cluster/topic/0/one.log/00000": PART_BYTES,
        "cluster/topic/0/one.log/00001": 5,
    }
