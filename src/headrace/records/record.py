"""One record, and the validation of all records of a batch.

    length          varint   number of bytes after this field
    attributes      1 byte   unused; the top bit must be 0
    timestamp delta varlong  relative to the batch's base timestamp
    offset delta    varint   relative to the batch's base offset
    key             varint length, then the bytes; length -1 is null
    value           like the key
    header count    varint
    headers         name (UTF-8, never null) and value, each encoded like the key

Invariant of a produced batch: its count is the number of records, the offset deltas are 0, 1, 2 …, and the last byte of
the last record is the last byte of the batch. This validation accepts only records that every Kafka client can read. So
it refuses lengths below -1: Java's reader treats them as null, but librdkafka fails.

This Python code is slow. ``_walk.c`` does the same in C, if it was built. Both compare each length with the remaining
bytes before they use it, never allocate memory based on an unchecked length, and read each byte once.

Varints have seven bits per byte and are zigzag-encoded, so that small negative numbers are also short. Readers of the
format accept up to 5 bytes for 32-bit fields and up to 10 bytes for 64-bit fields. This code does the same, and refuses
longer or larger numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from headrace.checksum import Buffer
from headrace.records.errors import CorruptRecords, InvalidRecords, RecordLimits

__all__ = [
    "WINDOW_BYTES_MAX",
    "BareRecord",
    "BareRecords",
    "Headers",
    "Record",
    "RecordsSummary",
    "append_varint",
    "fast_read",
    "read_bare_records",
    "read_headers",
    "read_varint",
    "read_varlong",
    "validate_records",
    "varint_size",
]


def read_varint(buf: Buffer, pos: int, end: int) -> tuple[int, int]:
    """Read the 32-bit number at ``pos``; returns it with the position after it."""
    if pos < end and (byte := buf[pos]) < 0x80:  # the most frequent case
        return (byte >> 1) ^ -(byte & 1), pos + 1
    return _read(buf, pos, end, 5, 32)


def read_varlong(buf: Buffer, pos: int, end: int) -> tuple[int, int]:
    if pos < end and (byte := buf[pos]) < 0x80:
        return (byte >> 1) ^ -(byte & 1), pos + 1
    return _read(buf, pos, end, 10, 64)


def _read(buf: Buffer, pos: int, end: int, bytes_max: int, bits_max: int) -> tuple[int, int]:
    value = shift = 0
    start = pos
    while pos < end:
        byte = buf[pos]
        pos += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            if value >> bits_max:
                raise InvalidRecords(f"the number at byte {start} has more than {bits_max} bits")
            return (value >> 1) ^ -(value & 1), pos
        shift += 7
        if pos - start == bytes_max:
            raise InvalidRecords(f"the number at byte {start} is longer than {bytes_max} bytes")
    raise InvalidRecords(f"the number at byte {start} ends outside its record")


def append_varint(out: bytearray, value: int) -> None:
    rest = _zigzag(value)
    while rest >= 0x80:
        out.append(rest & 0x7F | 0x80)
        rest >>= 7
    out.append(rest)


def varint_size(value: int) -> int:
    """Return the number of bytes that ``append_varint`` writes."""
    if 0 <= value < 64:
        return 1
    return (_zigzag(value).bit_length() + 6) // 7 or 1


def _zigzag(value: int) -> int:
    return value << 1 if value >= 0 else (-value << 1) - 1


_INT32_MAX = 2**31 - 1
_INT64_MIN = -(2**63)
_INT64_MAX = 2**63 - 1

Headers = list[tuple[str, bytes | None]]


class Record(NamedTuple):
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Headers


class BareRecord(NamedTuple):
    """A record without decoded headers. As Python objects, headers would use thirty times as much memory."""

    offset: int  # relative to the batch's base offset
    timestamp: int  # relative to the batch's base timestamp
    key: bytes | None
    value: bytes | None
    headers_at: int  # position of the header count; 0 without headers


class RecordsSummary(NamedTuple):
    """A summary of the records of a batch: the least and the greatest timestamp delta, and whether a key is null."""

    delta_min: int
    delta_max: int
    has_null_key: bool

    def __or__(self, other: object) -> RecordsSummary:
        if not isinstance(other, RecordsSummary):
            return NotImplemented
        return RecordsSummary(
            min(self.delta_min, other.delta_min),
            max(self.delta_max, other.delta_max),
            self.has_null_key or other.has_null_key,
        )


# The fields of one record: timestamp delta, offset delta, position and size of the key and of the value, position of
# the headers, and the end. A plain tuple, because creating named tuples would take a third of the validation time.
_Fields = tuple[int, int, int, int, int, int, int, int]


def validate_records(buf: Buffer, pos: int, end: int, indexes: range, limits: RecordLimits) -> RecordsSummary:
    """Validate the records from ``pos`` to exactly ``end``. Their offset deltas must equal ``indexes``."""
    delta_min, delta_max = _INT64_MAX, _INT64_MIN
    has_null_key = False
    headers_max = limits.headers_max
    for index in indexes:
        delta, offset_delta, _, key_size, _, _, _, pos = _parse_record(buf, pos, end, index, headers_max)
        if offset_delta != index:
            raise InvalidRecords(f"record {index} has the wrong offset delta {offset_delta}")
        delta_min = min(delta_min, delta)
        delta_max = max(delta_max, delta)
        has_null_key |= key_size < 0
    if pos != end:
        raise InvalidRecords(f"{end - pos} extra bytes after the last record ({indexes[-1]})")
    return RecordsSummary(delta_min, delta_max, has_null_key)


def read_bare_records(buf: Buffer, pos: int, indexes: range, bytes_max: int) -> tuple[list[BareRecord], int]:
    """Read records from ``pos`` on until they have at least ``bytes_max`` bytes; returns them with the position after
    them.

    ``indexes`` are the record numbers for error messages. The offset deltas may differ from them.
    """
    records: list[BareRecord] = []
    start, end = pos, len(buf)
    for index in indexes:
        if pos - start >= bytes_max:
            break
        delta, offset_delta, key_at, key_size, value_at, value_size, headers_at, pos = _parse_record(
            buf, pos, end, index, _INT32_MAX
        )
        key, value = _field(buf, key_at, key_size), _field(buf, value_at, value_size)
        records.append(BareRecord(offset_delta, delta, key, value, headers_at))
    return records, pos


def read_headers(buf: Buffer, pos: int) -> Headers:
    """Read the headers of a validated record. ``pos`` is the position of the header count."""
    end = len(buf)
    count, pos = read_varint(buf, pos, end)
    headers: Headers = []
    for _ in range(count):
        size, pos = read_varint(buf, pos, end)
        name = str(buf[pos : pos + size], "utf-8")
        size, pos = read_varint(buf, pos + size, end)
        headers.append((name, _field(buf, pos, size)))
        pos += max(size, 0)
    return headers


def _field(buf: Buffer, pos: int, size: int) -> bytes | None:
    return None if size < 0 else bytes(buf[pos : pos + size])


def _parse_record(buf: Buffer, pos: int, end: int, index: int, headers_max: int) -> _Fields:
    length, pos = read_varint(buf, pos, end)
    if not 0 < length <= end - pos:
        raise InvalidRecords(f"record {index} declares {length} bytes, but {end - pos} bytes remain")
    end = pos + length
    if buf[pos] >= 0x80:
        # The format does not define these bits. Python clients read them as the start of a longer number.
        raise InvalidRecords(f"record {index} has invalid attributes {buf[pos]:#04x}")
    delta, pos = read_varlong(buf, pos + 1, end)
    offset_delta, pos = read_varint(buf, pos, end)
    key_size, key_at = _read_size(buf, pos, end, index)
    value_size, value_at = _read_size(buf, key_at + max(key_size, 0), end, index)
    headers_at = value_at + max(value_size, 0)
    header_count, pos = read_varint(buf, headers_at, end)
    if header_count:
        pos = _validate_headers(buf, pos, end, index, header_count, headers_max)
    else:
        headers_at = 0
    if pos != end:
        raise InvalidRecords(
            f"record {index} declares {length} bytes, but its fields end {end - pos} bytes earlier"
        )
    return delta, offset_delta, key_at, key_size, value_at, value_size, headers_at, end


def _validate_headers(buf: Buffer, pos: int, end: int, index: int, count: int, headers_max: int) -> int:
    if not 0 <= count <= headers_max:
        raise InvalidRecords(
            f"record {index} has an invalid number of headers: {count}",
            hint=f"use at most {headers_max} headers per record",
        )
    for _ in range(count):
        size, pos = _read_size(buf, pos, end, index)
        if size < 0:
            raise InvalidRecords(f"record {index} has a header without a name")
        try:
            str(buf[pos : pos + size], "utf-8")
        except UnicodeDecodeError:
            raise InvalidRecords(f"record {index} has a header name that is not UTF-8") from None
        size, pos = _read_size(buf, pos + size, end, index)
        pos += max(size, 0)
    return pos


def _read_size(buf: Buffer, pos: int, end: int, index: int) -> tuple[int, int]:
    size, pos = read_varint(buf, pos, end)
    if not -1 <= size <= end - pos:
        raise InvalidRecords(f"record {index} has a field of {size} bytes, but {end - pos} bytes remain")
    return size, pos


FastRead = Callable[[Buffer, int, range, int], tuple[list[BareRecord], int]]

fast_read: FastRead | None = None

try:
    from headrace.records import _walk
except ImportError:
    pass
else:

    def _fast_read(buf: Buffer, pos: int, indexes: range, bytes_max: int) -> tuple[list[BareRecord], int]:
        """Like ``read_bare_records``, but faster."""
        records, end_position = _walk.read(buf, pos, len(indexes), bytes_max, BareRecord)
        if len(records) < len(indexes) and end_position - pos < bytes_max:
            rest, end_position = read_bare_records(buf, end_position, indexes[len(records) :], bytes_max)
            records += rest
        return records, end_position

    fast_read = _fast_read

WINDOW_BYTES_MAX = 1024 * 1024


class BareRecords:
    """Exactly ``count`` records, which can be iterated more than once. An invalid record raises ``CorruptRecords``.

    To limit memory, about one mebibyte of records is decoded at a time. A record of seven bytes becomes objects of two
    hundred bytes, and a batch can decompress to a hundred megabytes.
    """

    def __init__(self, plain: memoryview, count: int) -> None:
        self._plain = plain
        self._count = count

    def __iter__(self) -> Iterator[BareRecord]:
        read = fast_read or read_bare_records
        plain, position, remaining = self._plain, 0, range(self._count)
        while remaining:
            try:
                records, position = read(plain, position, remaining, WINDOW_BYTES_MAX)
            except InvalidRecords as error:
                raise CorruptRecords(f"invalid stored records: {error.message}") from error
            yield from records
            remaining = remaining[len(records) :]
        if position != len(plain):
            raise CorruptRecords(
                f"{len(plain) - position} extra bytes after the last of {self._count} records"
            )
