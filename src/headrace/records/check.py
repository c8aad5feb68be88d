"""The one walk over a batch at produce: after it, no reader of any kind can stumble over these bytes."""

from __future__ import annotations

from collections.abc import Iterator
from functools import reduce
from operator import or_
from typing import NamedTuple

from crc32c import crc32c

from headrace.records.codecs import CODEC_NAMES, NO_CODEC, unknown, unpack
from headrace.records.errors import CorruptRecords, InvalidRecords, RecordsTooLarge
from headrace.records.header import CRC_START, HEADER_SIZE, BatchHeader, Buffer, read_header
from headrace.records.limits import RecordLimits
from headrace.records.parser import SLACK, WINDOW_BYTES_MAX, parse_facts, parse_records, plain_header
from headrace.records.quick_walk import quick_walk
from headrace.records.record import Facts, Record, walk_records
from headrace.records.varint import read_varint

__all__ = ["Checked", "check_batch", "read_records"]

_TIMESTAMP_MIN = -(2**63)
_TIMESTAMP_MAX = 2**63 - 1


class Checked(NamedTuple):
    max_timestamp: int
    min_timestamp: int
    has_null_key: bool


def check_batch(batch: Buffer, limits: RecordLimits) -> Checked:
    """Check that ``batch`` is exactly one batch, intact and consistent; say what its records hold."""
    header = intact_header(batch)
    if quick_walk is not None and header.codec == NO_CODEC:
        check_count(header, limits)
        facts = quick_walk(batch, HEADER_SIZE, header.count, limits)
    else:
        plain = unpack_batch(batch, header, limits)
        facts = walk_batch(plain, header.count, limits)
    earliest = header.base_timestamp + facts.delta_min
    latest = header.base_timestamp + facts.delta_max
    if earliest < _TIMESTAMP_MIN or latest > _TIMESTAMP_MAX:
        raise InvalidRecords(f"timestamps from {earliest} to {latest} do not fit in 64 bits")
    return Checked(latest, earliest, facts.has_null_key)


def read_records(batch: Buffer, limits: RecordLimits) -> list[Record]:
    """Check a batch, then give its records, with their offsets and timestamps."""
    header = intact_header(batch)
    plain = unpack_batch(batch, header, limits)
    walk_batch(plain, header.count, limits)
    base_offset = header.base_offset
    if header.uses_append_time:
        time = header.max_timestamp
        return [r._replace(offset=base_offset + r.offset, timestamp=time) for r in parse_records(plain)]
    base = header.base_timestamp
    return [
        r._replace(offset=base_offset + r.offset, timestamp=base + r.timestamp) for r in parse_records(plain)
    ]


def intact_header(batch: Buffer) -> BatchHeader:
    header = read_header(batch)
    if header.size != len(batch):
        raise CorruptRecords(f"batch states {header.size} bytes, {len(batch)} came")
    if crc32c(memoryview(batch)[CRC_START:]) != header.crc:
        raise CorruptRecords(f"batch of {len(batch)} bytes does not match its checksum")
    return header


def check_count(header: BatchHeader, limits: RecordLimits) -> None:
    count = header.count
    if count < 1 or count != header.last_offset_delta + 1:
        raise InvalidRecords(f"batch states {count} records and last offset delta {header.last_offset_delta}")
    if count > limits.records_max:
        raise RecordsTooLarge(
            f"batch has {count} records", hint=f"a batch may have up to {limits.records_max}"
        )


def unpack_batch(batch: Buffer, header: BatchHeader, limits: RecordLimits) -> memoryview:
    """The same records, uncompressed, under a plain header; zero bytes lie behind the view's end."""
    check_count(header, limits)
    count, codec = header.count, header.codec
    if codec >= len(CODEC_NAMES):
        raise unknown(codec)
    records = memoryview(batch)[HEADER_SIZE:]
    if codec == NO_CODEC:
        plain = b"".join((plain_header(len(records), count), records, SLACK))
        return memoryview(plain)[: -len(SLACK)]
    buffer, size = unpack(codec, records, limits.unpacked_bytes_max, lead=HEADER_SIZE, slack=len(SLACK))
    buffer[:HEADER_SIZE] = plain_header(size, count)
    return memoryview(buffer)[: HEADER_SIZE + size]


def walk_batch(plain: memoryview, count: int, limits: RecordLimits) -> Facts:
    """Prove the records right, or raise what is wrong with them."""
    if quick_walk is not None:
        return quick_walk(plain, HEADER_SIZE, count, limits)
    if len(plain) - HEADER_SIZE <= WINDOW_BYTES_MAX:
        return _walk_window(plain, 0, count, limits)
    return reduce(or_, (_walk_cut(plain, *cut, limits) for cut in cuts(plain, count)))


def _walk_window(plain: memoryview, first: int, count: int, limits: RecordLimits) -> Facts:
    facts = parse_facts(plain, first, limits)
    if facts is None:
        return walk_records(plain, HEADER_SIZE, len(plain), range(first, first + count), limits)
    return facts


def _walk_cut(plain: memoryview, start: int, end: int, first: int, count: int, limits: RecordLimits) -> Facts:
    if end - start > WINDOW_BYTES_MAX:
        return walk_records(plain, start, end, range(first, first + count), limits)
    window = b"".join((plain_header(end - start, count), plain[start:end], SLACK))
    return _walk_window(memoryview(window)[: -len(SLACK)], first, count, limits)


def cuts(plain: memoryview, count: int) -> Iterator[tuple[int, int, int, int]]:
    """Cut many bytes between records: start, end, index of the first and number of records.

    No piece is larger than a window, but for single records that are.
    """
    octets, size = plain.obj, len(plain)  # the view's owner, which is quicker to index
    assert isinstance(octets, bytes | bytearray)
    pos = start = HEADER_SIZE
    first = 0
    for index in range(count):
        # One or two bytes nearly always; the slack behind the end makes the second one safe to look at.
        low, high = octets[pos], octets[pos + 1]
        if low < 0x80 and not low & 1:
            length, body = low >> 1, pos + 1
        elif low >= 0x80 > high and not low & 1:
            length, body = (low & 0x7F | high << 7) >> 1, pos + 2
        else:
            length, body = read_varint(octets, pos, size)
        end = body + length
        if length < 1 or end > size:
            raise InvalidRecords(f"record {index} states {length} bytes where {size - body} are left")
        if end - start > WINDOW_BYTES_MAX and pos > start:
            yield start, pos, first, index - first
            start, first = pos, index
        pos = end
    if pos != size:
        raise InvalidRecords(f"{size - pos} bytes are left after the last of {count} records")
    yield start, pos, first, count - first
