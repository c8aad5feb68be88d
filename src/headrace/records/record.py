"""One record, and the walk over all of a batch that decides what is valid.

    length          varint   bytes that follow it
    attributes      1 byte   unused, the top bit 0
    timestamp delta varlong  to the batch's base timestamp
    offset delta    varint   to the batch's base offset
    key             varint length, then as many bytes; -1 is null
    value           the same
    header count    varint
    headers         key (never null, UTF-8) and value, each like a key

Invariant of a batch as produced: its count says how many there are, the offset deltas are 0, 1, 2 …, and the
last byte of the last record is the last byte of the batch. This walk is the rule: it takes what every reader
takes. Lengths below -1 are null to Java's, and librdkafka never gets past them, so they are refused.

It is slow; ``quick_walk`` has the same in C, where that was built. Both hold each length against what is left before
they look behind it, allocate nothing for what is only claimed, and pass each byte once.
"""

from __future__ import annotations

from typing import NamedTuple

from headrace.records.errors import InvalidRecords
from headrace.records.header import Buffer
from headrace.records.limits import RecordLimits
from headrace.records.varint import read_varint, read_varlong

__all__ = ["BareRecord", "Facts", "Headers", "Record", "read_bare_records", "read_headers", "walk_records"]


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
    """A record whose headers were looked at and left where they are: as objects they take thirty times their bytes."""

    offset: int  # as a delta, like the timestamp
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers_at: int  # where their count is; 0 if there are none


class Facts(NamedTuple):
    """What a walk found out; timestamps are deltas."""

    delta_min: int
    delta_max: int
    has_null_key: bool

    def __or__(self, other: object) -> Facts:
        if not isinstance(other, Facts):
            return NotImplemented
        return Facts(
            min(self.delta_min, other.delta_min),
            max(self.delta_max, other.delta_max),
            self.has_null_key or other.has_null_key,
        )


# Of one record: timestamp delta, offset delta, then where the key is and its size, the value and its size, where the
# headers are, and the end. A bare tuple: one with names would take a third of the walk.
_Fields = tuple[int, int, int, int, int, int, int, int]


def walk_records(buf: Buffer, pos: int, end: int, indexes: range, limits: RecordLimits) -> Facts:
    """Walk the records whose offset deltas must be ``indexes``, from ``pos`` to exactly ``end``."""
    delta_min, delta_max = _INT64_MAX, _INT64_MIN
    has_null_key = False
    headers_max = limits.headers_max
    for index in indexes:
        delta, offset_delta, _, key_size, _, _, _, pos = _walk_record(buf, pos, end, index, headers_max)
        if offset_delta != index:
            raise InvalidRecords(f"record {index} has offset delta {offset_delta}")
        delta_min = min(delta_min, delta)
        delta_max = max(delta_max, delta)
        has_null_key |= key_size < 0
    if pos != end:
        raise InvalidRecords(f"{end - pos} bytes are left after record {indexes[-1]}, the last")
    return Facts(delta_min, delta_max, has_null_key)


def read_bare_records(buf: Buffer, pos: int, indexes: range, bytes_max: int) -> tuple[list[BareRecord], int]:
    """Records from ``pos`` on, no more once they take ``bytes_max``; and the position behind them.

    ``indexes`` count them, for words only: their offset deltas may be others.
    """
    found: list[BareRecord] = []
    start, end = pos, len(buf)
    for index in indexes:
        if pos - start >= bytes_max:
            break
        delta, offset_delta, key_at, key_size, value_at, value_size, headers_at, pos = _walk_record(
            buf, pos, end, index, _INT32_MAX
        )
        key, value = _field(buf, key_at, key_size), _field(buf, value_at, value_size)
        found.append(BareRecord(offset_delta, delta, key, value, headers_at))
    return found, pos


def read_headers(buf: Buffer, pos: int) -> Headers:
    """The headers of a record that has been walked, from their count on."""
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


def _walk_record(buf: Buffer, pos: int, end: int, index: int, headers_max: int) -> _Fields:
    length, pos = read_varint(buf, pos, end)
    if not 0 < length <= end - pos:
        raise InvalidRecords(f"record {index} states {length} bytes where {end - pos} are left")
    end = pos + length
    if buf[pos] >= 0x80:
        # Bits that nobody defined; Python's clients read them as the start of a longer number and lose their way.
        raise InvalidRecords(f"record {index} has attributes {buf[pos]:#04x}")
    delta, pos = read_varlong(buf, pos + 1, end)
    offset_delta, pos = read_varint(buf, pos, end)
    key_size, key_at = _read_size(buf, pos, end, index)
    value_size, value_at = _read_size(buf, key_at + max(key_size, 0), end, index)
    headers_at = value_at + max(value_size, 0)
    header_count, pos = read_varint(buf, headers_at, end)
    if header_count:
        pos = _walk_headers(buf, pos, end, index, header_count, headers_max)
    else:
        headers_at = 0
    if pos != end:
        raise InvalidRecords(
            f"record {index} states {length} bytes but its fields end {end - pos} before that"
        )
    return delta, offset_delta, key_at, key_size, value_at, value_size, headers_at, end


def _walk_headers(buf: Buffer, pos: int, end: int, index: int, count: int, headers_max: int) -> int:
    if not 0 <= count <= headers_max:
        raise InvalidRecords(
            f"record {index} has {count} headers",
            hint=f"a record may have up to {headers_max}",
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
        raise InvalidRecords(f"record {index} has a field of {size} bytes where {end - pos} are left")
    return size, pos
