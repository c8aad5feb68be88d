"""One record, and the walk over all of a batch that decides what is valid.

    length          varint   bytes that follow it
    attributes      1 byte   unused, the top bit 0
    timestamp delta varlong  to the batch's base timestamp
    offset delta    varint   to the batch's base offset
    key             varint length, then as many bytes; a negative length is null
    value           the same
    header count    varint
    headers         key (never null, UTF-8) and value, each like a key

Invariant of a batch as produced: its count says how many there are, the offset deltas are 0, 1, 2 …, and the
last byte of the last record is the last byte of the batch. This walk is the rule: it takes what Java's reader
takes. It is slow; ``quick_walk`` gives the same verdicts in C, and without that ``parser`` does where it can.
"""

from __future__ import annotations

from typing import NamedTuple

from headrace.records.errors import InvalidRecords
from headrace.records.header import Buffer
from headrace.records.limits import RecordLimits
from headrace.records.varint import read_varint, read_varlong

__all__ = ["Facts", "Record", "walk_records"]


_INT64_MIN = -(2**63)
_INT64_MAX = 2**63 - 1


class Record(NamedTuple):
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]


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


def walk_records(buf: Buffer, pos: int, end: int, indexes: range, limits: RecordLimits) -> Facts:
    """Walk the records whose offset deltas must be ``indexes``, from ``pos`` to exactly ``end``."""
    delta_min, delta_max = _INT64_MAX, _INT64_MIN
    has_null_key = False
    for index in indexes:
        pos, delta, key_is_null = _walk_record(buf, pos, end, index, limits)
        delta_min = min(delta_min, delta)
        delta_max = max(delta_max, delta)
        has_null_key |= key_is_null
    if pos != end:
        raise InvalidRecords(f"{end - pos} bytes are left after record {indexes[-1]}, the last")
    return Facts(delta_min, delta_max, has_null_key)


def _walk_record(buf: Buffer, pos: int, end: int, index: int, limits: RecordLimits) -> tuple[int, int, bool]:
    length, pos = read_varint(buf, pos, end)
    if not 0 < length <= end - pos:
        raise InvalidRecords(f"record {index} states {length} bytes where {end - pos} are left")
    end = pos + length
    if buf[pos] >= 0x80:
        # Bits that nobody defined; Python's clients read them as the start of a longer number and lose their way.
        raise InvalidRecords(f"record {index} has attributes {buf[pos]:#04x}")
    delta, pos = read_varlong(buf, pos + 1, end)
    offset_delta, pos = read_varint(buf, pos, end)
    if offset_delta != index:
        raise InvalidRecords(f"record {index} has offset delta {offset_delta}")
    key_size, pos = _read_size(buf, pos, end, index)
    pos += max(key_size, 0)
    value_size, pos = _read_size(buf, pos, end, index)
    pos += max(value_size, 0)
    header_count, pos = read_varint(buf, pos, end)
    if not 0 <= header_count <= limits.headers_max:
        raise InvalidRecords(
            f"record {index} has {header_count} headers",
            hint=f"a record may have up to {limits.headers_max}",
        )
    for _ in range(header_count):
        size, pos = _read_size(buf, pos, end, index)
        if size < 0:
            raise InvalidRecords(f"record {index} has a header without a name")
        try:
            str(buf[pos : pos + size], "utf-8")
        except UnicodeDecodeError:
            raise InvalidRecords(f"record {index} has a header name that is not UTF-8") from None
        size, pos = _read_size(buf, pos + size, end, index)
        pos += max(size, 0)
    if pos != end:
        raise InvalidRecords(
            f"record {index} states {length} bytes but its fields end {end - pos} before that"
        )
    return pos, delta, key_size < 0


def _read_size(buf: Buffer, pos: int, end: int, index: int) -> tuple[int, int]:
    size, pos = read_varint(buf, pos, end)
    if size > end - pos:
        raise InvalidRecords(f"record {index} has a field of {size} bytes where {end - pos} are left")
    return size, pos
