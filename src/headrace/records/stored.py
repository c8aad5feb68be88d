"""Reads batches from the broker's disk, removes records from them, and extends their offset range.

A produced batch has one record for each offset. Compaction removes records and changes as little else as possible. The
fields of a compacted batch:

    base offset          unchanged
    offset deltas        of the remaining records: ascending, with gaps
    count                the number of remaining records; can be 0
    last offset delta    unchanged, or larger if the batch is *stretched* over the offsets of removed batches after it.
                         So each batch still begins where the previous batch ends, and a reader can distinguish a
                         compacted log from a log with missing batches. A stretched batch has a lower base sequence,
                         so that its last sequence, which shows the producer's progress, does not change.
    delete horizon       attribute bit 6: the base timestamp is the time at which the tombstones in this batch expire

Every Kafka client computes its next offset from the last offset delta and skips missing offsets.

Stored batches were validated when they were produced. This module does not change a batch with a wrong CRC. It also
checks lengths, because the contents of a disk or an archive cannot be trusted.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import compress
from struct import Struct
from typing import NamedTuple

from headrace.checksum import Buffer
from headrace.records.batch import (
    BASE_SEQUENCE_AT,
    CODEC_MASK,
    DELETE_HORIZON_BIT,
    HEADER,
    HEADER_SIZE,
    LAST_OFFSET_DELTA_AT,
    LENGTH_END,
    MAGIC,
    SEQUENCE_RANGE,
    TRANSACTIONAL_BIT,
    BatchHeader,
    intact_header,
    seal,
    unpack_records,
)
from headrace.records.codecs import pack
from headrace.records.errors import CorruptRecords, RecordLimits
from headrace.records.record import (
    WINDOW_BYTES_MAX,
    BareRecord,
    BareRecords,
    append_varint,
    read_varint,
    read_varlong,
)

__all__ = [
    "StoredBatch",
    "empty_batch",
    "empty_batch_for_offsets",
    "extend_last_offset",
    "open_batch",
    "read_stored",
    "remove_records",
]

_INT32 = Struct(">i")


class StoredBatch(NamedTuple):
    """A decompressed batch. ``records`` have relative offsets and timestamps, and can be iterated more than once."""

    header: BatchHeader
    plain: memoryview
    records: Iterable[BareRecord]


def open_batch(batch: Buffer, limits: RecordLimits) -> StoredBatch:
    header = intact_header(batch)
    if not 0 <= header.count <= header.last_offset_delta + 1:
        raise CorruptRecords(
            f"the stored batch has {header.count} records, but its last offset delta is {header.last_offset_delta}"
        )
    if not header.count:
        return StoredBatch(header, memoryview(b""), ())
    plain = unpack_records(batch, header, limits)
    records = BareRecords(plain, header.count)
    return StoredBatch(header, plain, records if len(plain) > WINDOW_BYTES_MAX else list(records))


def read_stored(batch: Buffer, limits: RecordLimits) -> Iterator[tuple[int, int]]:
    """Yield the offset and the timestamp of each remaining record of a batch."""
    header, _, records = open_batch(batch, limits)
    first, start = header.base_offset, header.base_timestamp
    for record in records:
        timestamp = header.max_timestamp if header.uses_append_time else start + record.timestamp
        yield first + record.offset, timestamp


def remove_records(
    stored: StoredBatch, kept: Sequence[int], delete_horizon_ms: int | None = None
) -> bytearray:
    """Return the batch with only the records for which ``kept`` has a 1. At least one record must remain.

    ``delete_horizon_ms`` adds a delete horizon to a batch that does not have one. It replaces the base timestamp, and
    the timestamps of the records become relative to it.
    """
    header, plain, records = stored
    changed = header._replace(count=sum(kept))
    if not header.uses_append_time:
        latest = max(record.timestamp for record in compress(records, kept))
        changed = changed._replace(max_timestamp=header.base_timestamp + latest)
    body = bytearray()
    if delete_horizon_ms is None:
        for start, end in _runs(plain, kept):
            body += plain[start:end]
    else:
        shift = header.base_timestamp - delete_horizon_ms
        for start, end in compress(_bounds(plain, header.count), kept):
            _append_shifted(body, plain, start, end, shift)
        changed = changed._replace(
            attributes=header.attributes | DELETE_HORIZON_BIT, base_timestamp=delete_horizon_ms
        )
    return _sealed(changed, pack(header.codec, body))


def _bounds(plain: memoryview, count: int) -> Iterator[tuple[int, int]]:
    """Yield the start and the end of each record, including its length field."""
    position, size = 0, len(plain)
    for index in range(count):
        start = position
        # Fast path: the length field nearly always has one or two bytes.
        if position + 1 < size and (low := plain[position]) >= 0x80 > (high := plain[position + 1]):
            length = (low & 0x7F | high << 7) >> 1 ^ -(low & 1)
            position += 2
        else:
            length, position = read_varint(plain, position, size)
        if not 0 < length <= size - position:
            raise CorruptRecords(
                f"record {index} declares {length} bytes, but {size - position} bytes remain"
            )
        position += length
        yield start, position
    if position != size:
        raise CorruptRecords(f"{size - position} extra bytes after the last of {count} records")


def _runs(plain: memoryview, kept: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield the byte ranges of the records to retain. Adjacent records are one range."""
    first = run_end = -1
    for (start, end), keep in zip(_bounds(plain, len(kept)), kept, strict=True):
        if not keep:
            continue
        if start != run_end:
            if run_end >= 0:
                yield first, run_end
            first = start
        run_end = end
    yield first, run_end


def _append_shifted(out: bytearray, plain: memoryview, start: int, end: int, shift: int) -> None:
    _, attributes_at = read_varint(plain, start, end)
    delta, delta_end = read_varlong(plain, attributes_at + 1, end)
    head = bytearray(plain[attributes_at : attributes_at + 1])
    append_varint(head, delta + shift)
    append_varint(out, len(head) + end - delta_end)
    out += head
    out += plain[delta_end:end]


def empty_batch(header: BatchHeader) -> bytearray:
    """Return the batch without records and without its transactional bit. It preserves a producer's last sequence."""
    attributes = header.attributes & ~(CODEC_MASK | TRANSACTIONAL_BIT)
    return _sealed(header._replace(count=0, attributes=attributes), b"")


def empty_batch_for_offsets(
    base_offset: int, next_offset: int, leader_epoch: int, timestamp_ms: int
) -> bytearray:
    """Build a batch without producer and records. It fills a gap in the offsets over which no other batch
    can be extended."""
    header = BatchHeader(
        base_offset,
        0,
        leader_epoch,
        MAGIC,
        0,
        0,
        next_offset - base_offset - 1,
        timestamp_ms,
        timestamp_ms,
        -1,
        -1,
        -1,
        0,
    )
    return _sealed(header, b"")


def extend_last_offset(batch: bytearray, header: BatchHeader, next_offset: int) -> None:
    """Extend the batch in place, up to ``next_offset`` (exclusive). Its last sequence does not change."""
    delta = next_offset - header.base_offset - 1
    longer = delta - header.last_offset_delta
    _INT32.pack_into(batch, LAST_OFFSET_DELTA_AT, delta)
    if header.base_sequence >= 0:
        _INT32.pack_into(batch, BASE_SEQUENCE_AT, (header.base_sequence - longer) % SEQUENCE_RANGE)
    seal(batch, 0)


def _sealed(header: BatchHeader, packed: Buffer) -> bytearray:
    out = bytearray(HEADER.pack(*header._replace(length=HEADER_SIZE - LENGTH_END + len(packed))))
    out += packed
    seal(out, 0)
    return out
