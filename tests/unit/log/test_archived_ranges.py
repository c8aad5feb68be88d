"""What is read of an archived segment is ranges of it, whatever is asked for and whatever is damaged."""

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
from tests.unit.log.archives import InBucket, Place, archive_now
from tests.unit.log.by_time import offset_for_time
from tests.unit.log.conftest import NOW_MS, append

BLOCK, PART = 4096, 16384


def ranges(s3: S3Server, bucket: str) -> list[int]:
    """How many bytes each request for a part of a log asked for."""
    found = [re.search(r"\.log/\d+ bytes=(\d+)-(\d+)", line) for line in s3.requests(bucket)]
    return [int(match[2]) - int(match[1]) + 1 for match in found if match]


class Large:
    """One archived segment of many blocks, with batches of about a tenth of one."""

    def __init__(self, directory: Path, s3: S3Server) -> None:
        self.s3 = s3
        self.archive = InBucket(s3)
        self.log: PartitionLog = Place(directory, SystemFiles(), self.archive).open()
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

    def asked(self) -> list[int]:
        """Sizes of the ranges that were asked for since the move, which reads all of it back."""
        return ranges(self.s3, self.archive.bucket)[self._before :]


@pytest.fixture
def large(tmp_path: Path, s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> Large:
    monkeypatch.setattr(archive_bucket, "BLOCK_BYTES", BLOCK)
    monkeypatch.setattr(archive_bucket, "PART_BYTES", PART)
    monkeypatch.setattr(scan, "_WINDOW", BLOCK)
    return Large(tmp_path, s3)


def test_a_read_and_a_look_up_by_time_take_a_few_blocks(large: Large) -> None:
    middle = large.log.local_start_offset // 2
    assert LogReader(large.log).read(middle, 600).next_offset > middle
    assert 0 < sum(large.asked()) <= 4 * BLOCK
    wanted = 2 * middle - 2
    assert offset_for_time(large.log, NOW_MS + wanted) == (wanted, NOW_MS + wanted)
    assert sum(large.asked()) <= 8 * BLOCK


def test_a_reader_that_goes_on_asks_for_each_block_once(large: Large) -> None:
    log_reader, offset = LogReader(large.log), 0
    while offset < large.log.local_start_offset:
        offset = log_reader.read(offset, 1_000).next_offset
    assert large.size <= sum(large.asked()) <= large.size + BLOCK


def test_a_length_that_leads_nowhere_is_not_read_for(large: Large, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "ARCHIVED_BYTES_MAX", 2 * BLOCK)
    # The third of four bytes of the length: it becomes one that the segment could hold.
    number, within = divmod(large.position_of_20 + 10, PART)
    large.s3.change(large.archive.bucket, f"cluster/topic/0/{0:020d}.log/{number:05d}", within)
    before = len(large.asked())
    with pytest.raises(CorruptBatch, match="does not lead to the next batch"):
        LogReader(large.log).read(20, 1_000)
    assert sum(large.asked()[before:]) <= 4 * BLOCK
    assert LogReader(large.log).read(21, 1_000).next_offset > 21


def test_a_part_that_is_missing_in_the_midst_is_not_taken_for_the_end_of_the_log(large: Large) -> None:
    end = large.log.local_start_offset
    # All batches have about the same size.
    inside = end * 5 * PART // (2 * large.size)
    large.s3.delete(large.archive.bucket, f"cluster/topic/0/{0:020d}.log/00002")
    with pytest.raises(ArchiveUnavailable, match=r"it has \d+ of \d+ bytes from byte \d+ on"):
        LogReader(large.log).read(inside, 1_000)
    with pytest.raises(ArchiveUnavailable):
        offset_for_time(large.log, NOW_MS + inside)
    assert LogReader(large.log).read(0, 1_000).next_offset > 0
    assert LogReader(large.log).read(end - 1, 1_000).next_offset == end


def test_no_index_is_made_from_a_log_with_a_part_missing(large: Large) -> None:
    for key in large.s3.objects(large.archive.bucket):
        if ".index/" in key or key.endswith(".log/00002"):
            large.s3.delete(large.archive.bucket, key)
    with pytest.raises(ArchiveUnavailable):
        LogReader(large.log).read(0, 1_000)


def test_a_part_is_put_by_one_request_so_that_no_upload_is_left_open(s3: S3Server) -> None:
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
