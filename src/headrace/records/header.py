"""The 61 bytes before the records of a batch, format 2 of Kafka's three, all numbers big-endian.

    at  size  field
     0     8  base offset          offset of the first record; the broker writes it
     8     4  length               bytes that follow this field, so the batch has 12 more
    12     4  leader epoch         the broker writes it
    16     1  magic                2
    17     4  CRC-32C              over everything from byte 21 on
    21     2  attributes           bits 0-2 codec, 3 append time, 4 transactional, 5 control, 6 delete horizon
    23     4  last offset delta    the last record's offset, less the base offset
    27     8  base timestamp       the records' timestamps are relative to it
    35     8  max timestamp
    43     8  producer id          -1 without idempotence, as are the next two
    51     2  producer epoch
    53     4  base sequence
    57     4  count                of records
    61        the records, one after the other, compressed as a whole

Invariant: base offset and leader epoch lie before the CRC's range, so placing a batch in the log leaves it
valid. A crash in the middle of a write leaves a batch without all its bytes, or a CRC that does not fit: both
are seen here.
"""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct
from struct import error as StructError
from typing import NamedTuple

from headrace.checksum import crc32c
from headrace.records.errors import CorruptRecords, InvalidRecords

__all__ = ["HEADER_SIZE", "BatchHeader", "Buffer", "crc_ok", "iter_headers", "read_header"]

Buffer = bytes | bytearray | memoryview

HEADER = Struct(">qiibIhiqqqhii")
HEADER_SIZE = HEADER.size
CRC = Struct(">I")
LENGTH_END = 12
CRC_AT = 17
CRC_START = 21
MAGIC = 2
LENGTH_MIN = HEADER_SIZE - LENGTH_END

CODEC_MASK = 0x07
APPEND_TIME_BIT = 0x08
TRANSACTIONAL_BIT = 0x10
CONTROL_BIT = 0x20
DELETE_HORIZON_BIT = 0x40

SEQUENCE_RANGE = 2**31


class BatchHeader(NamedTuple):
    base_offset: int
    length: int
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    count: int  # type: ignore[assignment]  # the field's name in the format; nobody counts a header's values

    @property
    def size(self) -> int:
        """Bytes of the whole batch."""
        return self.length + LENGTH_END

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self) -> int:
        return self.base_offset + self.last_offset_delta + 1

    @property
    def codec(self) -> int:
        return self.attributes & CODEC_MASK

    @property
    def is_transactional(self) -> bool:
        return self.attributes & TRANSACTIONAL_BIT != 0

    @property
    def is_control(self) -> bool:
        return self.attributes & CONTROL_BIT != 0

    @property
    def uses_append_time(self) -> bool:
        return self.attributes & APPEND_TIME_BIT != 0

    @property
    def has_delete_horizon(self) -> bool:
        return self.attributes & DELETE_HORIZON_BIT != 0

    @property
    def last_sequence(self) -> int:
        """Sequence number of the last record: after 2**31 - 1 comes 0. -1 without idempotence."""
        if self.base_sequence < 0:
            return -1
        return (self.base_sequence + self.last_offset_delta) % SEQUENCE_RANGE


_unpack_from = HEADER.unpack_from
_new_tuple = tuple.__new__
_LENGTH_FIELD = BatchHeader._fields.index("length")
_MAGIC_FIELD = BatchHeader._fields.index("magic")


def read_header(buf: Buffer, pos: int = 0) -> BatchHeader:
    """The header at ``pos``; whether the batch's other bytes are there too is the caller's question."""
    try:
        fields = _unpack_from(buf, pos)
    except StructError:
        left = len(buf) - pos
        raise CorruptRecords(f"{left} bytes at {pos} are too few for a header of {HEADER_SIZE}") from None
    if fields[_MAGIC_FIELD] != MAGIC:
        raise InvalidRecords(
            f"record batch has format {fields[_MAGIC_FIELD]}, not {MAGIC}",
            hint="produce with a client that speaks Kafka 0.11 or later",
        )
    if fields[_LENGTH_FIELD] < LENGTH_MIN:
        raise CorruptRecords(f"batch length {fields[_LENGTH_FIELD]} is below the header's own {LENGTH_MIN}")
    return _new_tuple(BatchHeader, fields)


def crc_ok(buf: Buffer, pos: int, size: int) -> bool:
    """Does the batch of ``size`` bytes at ``pos`` match its checksum?"""
    covered = memoryview(buf)[pos + CRC_START : pos + size]
    if size < HEADER_SIZE or len(covered) != size - CRC_START:
        return False
    (stated,) = CRC.unpack_from(buf, pos + CRC_AT)
    return bool(crc32c(covered) == stated)


def iter_headers(buf: Buffer) -> Iterator[tuple[int, BatchHeader]]:
    """Position and header of each whole batch, up to the end or to a batch that is only partly there."""
    pos = 0
    end = len(buf)
    while end - pos >= HEADER_SIZE:
        header = read_header(buf, pos)
        size = header.length + LENGTH_END
        if size > end - pos:
            return
        yield pos, header
        pos += size
