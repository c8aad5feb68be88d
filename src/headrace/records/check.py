"""The one walk over a batch at produce: after it, no reader of any kind can stumble over these bytes."""

from __future__ import annotations

from typing import NamedTuple

from headrace.checksum import crc32c
from headrace.records.codecs import CODEC_NAMES, NO_CODEC, unknown, unpack
from headrace.records.errors import CorruptRecords, InvalidRecords, RecordsTooLarge
from headrace.records.header import CRC_START, HEADER_SIZE, BatchHeader, Buffer, read_header
from headrace.records.limits import RecordLimits
from headrace.records.quick_walk import quick_walk
from headrace.records.reading import BareRecords
from headrace.records.record import Facts, Record, read_headers, walk_records

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
    base, first = header.base_timestamp, header.base_offset
    append_time = header.max_timestamp if header.uses_append_time else None
    return [
        Record(
            first + bare.offset,
            base + bare.timestamp if append_time is None else append_time,
            bare.key,
            bare.value,
            read_headers(plain, bare.headers_at) if bare.headers_at else [],
        )
        for bare in BareRecords(plain, header.count)
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
    """The bytes of the records, uncompressed."""
    check_count(header, limits)
    return unpack_records(batch, header, limits)


def unpack_records(batch: Buffer, header: BatchHeader, limits: RecordLimits) -> memoryview:
    if header.codec >= len(CODEC_NAMES):
        raise unknown(header.codec)
    packed = memoryview(batch)[HEADER_SIZE:]
    if header.codec == NO_CODEC:
        return packed
    buffer, size = unpack(header.codec, packed, limits.unpacked_bytes_max)
    return memoryview(buffer)[:size]


def walk_batch(plain: memoryview, count: int, limits: RecordLimits) -> Facts:
    """Prove the records right, or raise what is wrong with them."""
    if quick_walk is not None:
        return quick_walk(plain, 0, count, limits)
    return walk_records(plain, 0, len(plain), range(count), limits)
