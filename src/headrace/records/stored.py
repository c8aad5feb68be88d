"""Batches that come back from our own disk: read, thinned out, stretched.

At produce a batch is dense: one record for each offset that it covers. Compaction takes records out of it and leaves
everything else as it was, so that a stored batch has

    base offset          unchanged
    offset deltas        of the records that are left: rising, no longer one by one
    count                how many records are left, perhaps none
    last offset delta    not less than before. A batch is *stretched* over the offsets of batches behind it that went
                         away whole, so that each batch still begins where the one before it ends, and a reader can tell
                         a compacted log from one with a hole. The base sequence moves back by as much, because the
                         last sequence, which is what producers are known by, is counted from it.
    delete horizon       attribute bit 6: the base timestamp then says when the deletions in this batch expire

Every Kafka client takes its next offset from the last offset delta and passes over what is not there.

These bytes were walked when they were produced. Here the CRC must hold, and a batch without one is not touched; reading
them still trusts no length, since a disk or an archive can come from anywhere.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import compress
from struct import Struct
from typing import NamedTuple

from headrace.records.check import intact_header, unpack_records
from headrace.records.codecs import pack
from headrace.records.errors import CorruptRecords
from headrace.records.header import (
    CODEC_MASK,
    DELETE_HORIZON_BIT,
    HEADER,
    HEADER_SIZE,
    LENGTH_END,
    MAGIC,
    SEQUENCE_RANGE,
    TRANSACTIONAL_BIT,
    BatchHeader,
    Buffer,
)
from headrace.records.limits import RecordLimits
from headrace.records.place import seal
from headrace.records.reading import WINDOW_BYTES_MAX, BareRecords
from headrace.records.record import BareRecord
from headrace.records.varint import append_varint, read_varint, read_varlong

__all__ = [
    "StoredBatch",
    "cover_batch",
    "empty_batch",
    "open_batch",
    "read_stored",
    "stretch_batch",
    "thin_batch",
]

_DELTA_AT = 23
_SEQUENCE_AT = 53
_INT32 = Struct(">i")


class StoredBatch(NamedTuple):
    """One batch, unpacked; ``records`` have deltas for offsets and timestamps, and can be gone over more than once."""

    header: BatchHeader
    plain: memoryview
    records: Iterable[BareRecord]


def open_batch(batch: Buffer, limits: RecordLimits) -> StoredBatch:
    header = intact_header(batch)
    if not 0 <= header.count <= header.last_offset_delta + 1:
        raise CorruptRecords(
            f"stored batch states {header.count} records and last offset delta {header.last_offset_delta}"
        )
    if not header.count:
        return StoredBatch(header, memoryview(b""), ())
    plain = unpack_records(batch, header, limits)
    records = BareRecords(plain, header.count)
    return StoredBatch(header, plain, records if len(plain) > WINDOW_BYTES_MAX else list(records))


def read_stored(batch: Buffer, limits: RecordLimits) -> Iterator[tuple[int, int]]:
    """Offset and timestamp of each record that is left in a batch."""
    header, _, records = open_batch(batch, limits)
    first, start = header.base_offset, header.base_timestamp
    for record in records:
        timestamp = header.max_timestamp if header.uses_append_time else start + record.timestamp
        yield first + record.offset, timestamp


def thin_batch(stored: StoredBatch, kept: Sequence[int], delete_horizon_ms: int | None = None) -> bytearray:
    """The batch with only the records for which ``kept`` has a 1, at least one.

    ``delete_horizon_ms`` is given once, when the batch first needs one; it takes the base timestamp's place, and the
    records' timestamps are counted from it.
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
    """Where each record begins and ends, its length before it included."""
    position, size = 0, len(plain)
    for index in range(count):
        start = position
        # One or two bytes nearly always.
        if position + 1 < size and (low := plain[position]) >= 0x80 > (high := plain[position + 1]):
            length = (low & 0x7F | high << 7) >> 1 ^ -(low & 1)
            position += 2
        else:
            length, position = read_varint(plain, position, size)
        if not 0 < length <= size - position:
            raise CorruptRecords(f"record {index} states {length} bytes where {size - position} are left")
        position += length
        yield start, position
    if position != size:
        raise CorruptRecords(f"{size - position} bytes are left after the last of {count} records")


def _runs(plain: memoryview, kept: Sequence[int]) -> Iterator[tuple[int, int]]:
    """The bytes to keep, neighbours together."""
    first = behind = -1
    for (start, end), keep in zip(_bounds(plain, len(kept)), kept, strict=True):
        if not keep:
            continue
        if start != behind:
            if behind >= 0:
                yield first, behind
            first = start
        behind = end
    yield first, behind


def _append_shifted(out: bytearray, plain: memoryview, start: int, end: int, shift: int) -> None:
    _, attributes_at = read_varint(plain, start, end)
    delta, behind = read_varlong(plain, attributes_at + 1, end)
    head = bytearray(plain[attributes_at : attributes_at + 1])
    append_varint(head, delta + shift)
    append_varint(out, len(head) + end - behind)
    out += head
    out += plain[behind:end]


def empty_batch(header: BatchHeader) -> bytearray:
    """The batch without any record: what is left of one that tells a producer's last sequence. It is part of no
    transaction any more.
    """
    attributes = header.attributes & ~(CODEC_MASK | TRANSACTIONAL_BIT)
    return _sealed(header._replace(count=0, attributes=attributes), b"")


def cover_batch(base_offset: int, next_offset: int, leader_epoch: int, timestamp_ms: int) -> bytearray:
    """A batch of nobody's and of no records, for offsets that no other batch can be stretched over."""
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


def stretch_batch(batch: bytearray, header: BatchHeader, next_offset: int) -> None:
    """Let the batch end at ``next_offset``, in place; its last sequence stays what it was."""
    delta = next_offset - header.base_offset - 1
    longer = delta - header.last_offset_delta
    _INT32.pack_into(batch, _DELTA_AT, delta)
    if header.base_sequence >= 0:
        _INT32.pack_into(batch, _SEQUENCE_AT, (header.base_sequence - longer) % SEQUENCE_RANGE)
    seal(batch, 0)


def _sealed(header: BatchHeader, packed: Buffer) -> bytearray:
    out = bytearray(HEADER.pack(*header._replace(length=HEADER_SIZE - LENGTH_END + len(packed))))
    out += packed
    seal(out, 0)
    return out
