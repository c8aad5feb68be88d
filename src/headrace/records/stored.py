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

These bytes were walked when they were produced; here the CRC must hold, and a batch without one is not touched.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import compress
from struct import Struct
from typing import NamedTuple

from headrace.records.check import cuts, intact_header
from headrace.records.codecs import CODEC_NAMES, NO_CODEC, pack, unknown, unpack
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
from headrace.records.parser import SLACK, WINDOW_BYTES_MAX, ParsedRecord, parse_window, plain_header
from headrace.records.place import seal
from headrace.records.record import Record
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
    records: Iterable[ParsedRecord]


def open_batch(batch: Buffer, limits: RecordLimits) -> StoredBatch:
    header = intact_header(batch)
    if not 0 <= header.count <= header.last_offset_delta + 1:
        raise CorruptRecords(
            f"stored batch states {header.count} records and last offset delta {header.last_offset_delta}"
        )
    if not header.count:
        return StoredBatch(header, memoryview(b""), ())
    plain = _unpack(batch, header, limits)
    if len(plain) - HEADER_SIZE > WINDOW_BYTES_MAX:
        return StoredBatch(header, plain, _Windows(plain, header.count))
    return StoredBatch(header, plain, parse_window(plain))


def _unpack(batch: Buffer, header: BatchHeader, limits: RecordLimits) -> memoryview:
    if header.codec >= len(CODEC_NAMES):
        raise unknown(header.codec)
    packed = memoryview(batch)[HEADER_SIZE:]
    if header.codec == NO_CODEC:
        plain = b"".join((plain_header(len(packed), header.count), packed, SLACK))
        return memoryview(plain)[: -len(SLACK)]
    buffer, size = unpack(header.codec, packed, limits.unpacked_bytes_max, lead=HEADER_SIZE, slack=len(SLACK))
    buffer[:HEADER_SIZE] = plain_header(size, header.count)
    return memoryview(buffer)[: HEADER_SIZE + size]


class _Windows:
    """The records of a batch that is too large for the parser, a window at a time."""

    def __init__(self, plain: memoryview, count: int) -> None:
        self._plain = plain
        self._count = count

    def __iter__(self) -> Iterator[ParsedRecord]:
        plain = self._plain
        for start, end, _, count in cuts(plain, self._count):
            if end - start > WINDOW_BYTES_MAX:
                yield _large_record(plain, start, end)
                continue
            window = b"".join((plain_header(end - start, count), plain[start:end], SLACK))
            yield from parse_window(memoryview(window)[: -len(SLACK)])


def _large_record(plain: memoryview, position: int, end: int) -> Record:
    """A record of more than a window, without its headers, which could take many times their size."""
    _, position = read_varint(plain, position, end)
    timestamp, position = read_varlong(plain, position + 1, end)
    offset, position = read_varint(plain, position, end)
    fields: list[bytes | None] = []
    for _ in range(2):
        size, position = read_varint(plain, position, end)
        fields.append(None if size < 0 else bytes(plain[position : position + size]))
        position += max(size, 0)
    return Record(offset, timestamp, fields[0], fields[1], [])


def read_stored(batch: Buffer, limits: RecordLimits) -> list[tuple[int, int]]:
    """Offset and timestamp of each record that is left in a batch."""
    header, _, records = open_batch(batch, limits)
    first, start = header.base_offset, header.base_timestamp
    if header.uses_append_time:
        return [(first + record.offset, header.max_timestamp) for record in records]
    return [(first + record.offset, start + record.timestamp) for record in records]


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
    octets, size = plain.obj, len(plain)  # the view's owner, which is quicker to index
    assert isinstance(octets, bytes | bytearray)
    position = HEADER_SIZE
    for _ in range(count):
        start = position
        # One or two bytes nearly always; the slack behind the end makes the second one safe to look at.
        low, high = octets[position], octets[position + 1]
        if low < 0x80:
            position += 1 + (low >> 1)
        elif high < 0x80:
            position += 2 + ((low & 0x7F | high << 7) >> 1)
        else:
            length, body = read_varint(octets, position, size)
            position = body + length
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
