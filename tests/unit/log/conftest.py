"""A partition in a temporary directory, and batches to put into it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from headrace.files import SystemFiles
from headrace.log.config import LogConfig
from headrace.log.partition import Appended, PartitionLog
from headrace.log.reader import LogReader
from headrace.records import Marker, build_batch, iter_headers, read_header, read_marker, read_records
from headrace.records.errors import RecordLimits

NOW_MS = 1_700_000_000_000


class PartitionFixture:
    """One partition for a test: open it, append values, read them back, open it again."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        directory.mkdir(exist_ok=True)

    def open(self, *, config: LogConfig | None = None, **keywords: object) -> PartitionLog:
        config = config or LogConfig(segment_bytes=1500, index_interval_bytes=200)
        return PartitionLog(SystemFiles(), self.directory, config=config, now_ms=NOW_MS, **keywords)  # type: ignore[arg-type]

    def file(self, pattern: str) -> Path:
        (path,) = self.directory.glob(pattern)
        return path


def append(
    log: PartitionLog,
    *values: bytes,
    timestamp_ms: int = NOW_MS,
    producer: tuple[int, int, int] = (-1, -1, -1),
    now_ms: int = NOW_MS,
    transactional: bool = False,
    **keywords: bool,
) -> Appended:
    producer_id, epoch, sequence = producer
    batch = build_batch(
        [(b"k", value, ()) for value in values],
        timestamp_ms=timestamp_ms,
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=sequence,
        transactional=transactional,
    )
    return log.append(batch, read_header(batch), timestamp_ms, now_ms, **keywords)


def end(log: PartitionLog, producer_id: int, epoch: int, *, committed: bool) -> Appended | None:
    """Write the marker that ends a transaction."""
    marker = Marker(committed, coordinator_epoch=3)
    return log.append_marker(producer_id, epoch, marker, NOW_MS, seen_ms=NOW_MS)


def values_from(log: PartitionLog, offset: int | None = None, *, max_bytes: int = 700) -> dict[int, bytes]:
    """Read all values in many small reads; return them by offset."""
    reader = LogReader(log)
    offset = log.start_offset if offset is None else offset
    values_by_offset: dict[int, bytes] = {}
    while offset < log.high_watermark:
        read_slice = reader.read(offset, max_bytes)
        assert read_slice.next_offset > offset
        for position, header in iter_headers(read_slice.data):
            for record in read_records(read_slice.data[position : position + header.size], RecordLimits()):
                assert record.value is not None
                values_by_offset[record.offset] = record.value
        offset = read_slice.next_offset
    return values_by_offset


def committed_from(log: PartitionLog, offset: int | None = None, *, max_bytes: int = 700) -> dict[int, bytes]:
    """Read like a client that reads only committed records: skip the batches of each aborted transaction, from the
    transaction's first offset to its marker.
    """
    reader = LogReader(log)
    offset = log.start_offset if offset is None else offset
    values_by_offset: dict[int, bytes] = {}
    while offset < log.last_stable_offset:
        read_slice = reader.read(offset, max_bytes, committed=True)
        assert offset < read_slice.next_offset <= log.last_stable_offset
        upcoming = sorted(
            (a.first_offset, a.producer_id)
            for a in log.transactions.aborted_between(offset, read_slice.next_offset)
        )
        aborted: set[int] = set()
        for position, header in iter_headers(read_slice.data):
            batch = read_slice.data[position : position + header.size]
            while upcoming and upcoming[0][0] <= header.last_offset:
                aborted.add(upcoming.pop(0)[1])
            if header.is_control:
                marker = read_marker(batch)
                assert marker is not None
                if not marker.committed:
                    aborted.discard(header.producer_id)
            elif not (header.is_transactional and header.producer_id in aborted):
                for record in read_records(batch, RecordLimits()):
                    if record.offset >= offset:
                        assert record.value is not None
                        values_by_offset[record.offset] = record.value
        offset = read_slice.next_offset
    return values_by_offset


@pytest.fixture
def desk(tmp_path: Path) -> PartitionFixture:
    return PartitionFixture(tmp_path / "partition")


@pytest.fixture
def filled(desk: PartitionFixture) -> Callable[..., PartitionLog]:
    """A log of numbered values, three per batch, in several segments, all synced."""

    def fill(batches: int = 40, **keywords: object) -> PartitionLog:
        log = desk.open(**keywords)  # type: ignore[arg-type]
        for number in range(batches):
            first = log.end_offset
            append(log, *(b"value-%d" % (first + i) for i in range(3)), timestamp_ms=NOW_MS + number)
        log.sync_now()
        return log

    return fill
