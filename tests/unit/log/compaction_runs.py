"""Compaction in one thread, and a model of its result."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from headrace.files import Files, SystemFiles
from headrace.log.compaction import Compaction, CompactionReport, due
from headrace.log.config import LogConfig
from headrace.log.pace import Pace
from headrace.log.partition import PartitionLog
from headrace.log.reader import LogReader
from headrace.log.scan import scan_whole_batches
from headrace.records import Marker, RecordLimits, build_batch, iter_headers, open_batch, read_header
from headrace.testing.clock import DrivenClock
from tests.unit.log.conftest import NOW_MS

Key = bytes
Value = bytes | None

COMPACTED_TOPIC = LogConfig(
    segment_bytes=600,
    index_interval_bytes=100,
    cleanup_policy="compact",
    min_cleanable_dirty_ratio=0.0,
    delete_retention_ms=1000,
)


def compact(
    log: PartitionLog, files: Files | None = None, *, now_ms: int = NOW_MS, memory_bytes: int = 1 << 20
) -> CompactionReport | None:
    """Run one complete compaction, if one is due."""
    compaction = begin_compaction(log, files, now_ms=now_ms, memory_bytes=memory_bytes)
    if compaction is None:
        return None
    try:
        return run(compaction)
    finally:
        compaction.end()


def begin_compaction(
    log: PartitionLog, files: Files | None = None, *, now_ms: int = NOW_MS, memory_bytes: int = 1 << 20
) -> Compaction | None:
    found = due(log, now_ms)
    if found is None:
        return None
    return Compaction.begin(
        log,
        found,
        files or SystemFiles(),
        limits=RecordLimits(),
        now_ms=now_ms,
        memory_bytes=memory_bytes,
        pace=lambda stop: Pace(DrivenClock(), stop, 0),
    )


def run(compaction: Compaction) -> CompactionReport:
    compaction.read_keys()
    while (group := compaction.next_group()) is not None:
        compaction.forget_markers(group)
        compaction.commit(group)
        compaction.adopt(group)
        compaction.remove_replaced(group)
    return compaction.finish()


def put(
    log: PartitionLog,
    *records: tuple[Key, Value],
    codec: int = 0,
    producer: tuple[int, int, int] = (-1, -1, -1),
    transactional: bool = False,
    timestamp_ms: int = NOW_MS,
) -> int:
    """Append one batch and return its first offset."""
    batch = build_batch(
        [(key, value, ()) for key, value in records],
        timestamp_ms=timestamp_ms,
        codec=codec,
        producer_id=producer[0],
        producer_epoch=producer[1],
        base_sequence=producer[2],
        transactional=transactional,
    )
    return log.append(batch, read_header(batch), timestamp_ms, NOW_MS).base_offset


def end_transaction(log: PartitionLog, producer_id: int, epoch: int, *, committed: bool) -> int:
    appended = log.append_marker(producer_id, epoch, Marker(committed, 0), NOW_MS, seen_ms=NOW_MS)
    assert appended is not None
    return appended.base_offset


def seal(log: PartitionLog) -> None:
    """Make all records so far ready for compaction: in sealed segments, synced, and below the durable synced mark."""
    log.roll(NOW_MS)
    put(log, (b"last", b"so that the mark moves on"))
    log.sync_now()


@dataclass(slots=True)
class ReadRecords:
    """The records that a reader of committed records gets."""

    records: dict[int, tuple[Key, Value]] = field(default_factory=dict)

    def newest_by_key(self, below: int | None = None) -> dict[Key, bytes]:
        return newest_by_key(
            (record for offset, record in self.records.items() if below is None or offset < below)
        )


def newest_by_key(records: Iterable[tuple[Key, Value]]) -> dict[Key, bytes]:
    table: dict[Key, bytes] = {}
    for key, value in records:
        if value is None:
            table.pop(key, None)
        else:
            table[key] = value
    return table


def read_all(log: PartitionLog, offset: int | None = None, *, max_bytes: int = 300) -> ReadRecords:
    """Read committed records as a client does: it takes the next offset from the batches, and skips aborted ones."""
    reader = LogReader(log)
    offset = log.start_offset if offset is None else offset
    result = ReadRecords()
    while offset < log.last_stable_offset:
        read_slice = reader.read(offset, max_bytes, committed=True)
        assert read_slice.next_offset > offset
        upcoming = sorted(
            (transaction.first_offset, transaction.producer_id)
            for transaction in log.transactions.aborted_between(offset, read_slice.next_offset)
        )
        aborted: set[int] = set()
        for position, header in iter_headers(read_slice.data):
            while upcoming and upcoming[0][0] <= header.last_offset:
                aborted.add(upcoming.pop(0)[1])
            stored = open_batch(read_slice.data[position : position + header.size], RecordLimits())
            if header.is_control:
                for record in stored.records:
                    assert record.key is not None
                    if record.key[3] == 0:
                        aborted.discard(header.producer_id)
            elif not (header.is_transactional and header.producer_id in aborted):
                for record in stored.records:
                    if header.base_offset + record.offset >= offset:
                        assert record.key is not None
                        result.records[header.base_offset + record.offset] = (record.key, record.value)
        offset = read_slice.next_offset
    return result


def assert_unbroken(log: PartitionLog) -> None:
    """Assert that each batch begins where the previous one ends, across all segments."""
    offset = log.segments[0].base_offset
    for segment in log.segments:
        assert segment.base_offset == offset
        position = 0
        for found, header, _ in scan_whole_batches(segment.file, 0, segment.size, offset):
            position, offset = found + header.size, header.next_offset
        assert position == segment.size == segment.file.size()
        assert segment.end_offset == offset
    assert offset == log.end_offset
