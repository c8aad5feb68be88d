"""One record batch in Kafka's format 2 (the newest): its header of 61 bytes, and its validation.

All numbers are big-endian:

    at  size  field
     0     8  base offset          offset of the first record; the broker writes it
     8     4  length               bytes after this field; the whole batch has 12 more
    12     4  leader epoch         the broker writes it
    16     1  magic                2
    17     4  CRC-32C              of everything from byte 21 on
    21     2  attributes           bits 0-2 codec, 3 append time, 4 transactional, 5 control, 6 delete horizon
    23     4  last offset delta    the last record's offset minus the base offset
    27     8  base timestamp       the records' timestamps are relative to it
    35     8  max timestamp
    43     8  producer id          -1 if the producer is not idempotent
    51     2  producer epoch       likewise
    53     4  base sequence        likewise
    57     4  count                number of records
    61        the records, one after the other, compressed together

Invariant: the CRC does not cover the base offset and the leader epoch, so the broker can set them without changing the
CRC. A crash during a write leaves an incomplete batch or a CRC that does not match. This module detects both.

A batch is validated once, when it is produced. After that, every Kafka client can read it. The records are validated in
C if the package was installed with a compiler. The C code (``_walk.c``) does not raise errors: it returns the number
of valid records. The Python code in ``record`` continues at the first invalid record and raises the error. So even a
large batch with an invalid last record is validated quickly. Without the C code, Python validates everything, slowly.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from struct import Struct
from struct import error as StructError
from typing import NamedTuple

from headrace.checksum import Buffer, crc32c
from headrace.records.codecs import CODEC_NAMES, NO_CODEC, unknown_codec, unpack
from headrace.records.errors import CorruptRecords, InvalidRecords, RecordLimits, RecordsTooLarge
from headrace.records.record import BareRecords, Record, RecordsSummary, read_headers, validate_records

__all__ = [
    "HEADER_SIZE",
    "VALIDATES_IN_C",
    "BatchHeader",
    "BatchSummary",
    "check_batch",
    "codec_of",
    "crc_ok",
    "fast_validate",
    "iter_headers",
    "read_header",
    "read_records",
    "seal",
    "set_broker_fields",
    "transactional_producer",
    "with_max_timestamp",
]

HEADER = Struct(">qiibIhiqqqhii")
HEADER_SIZE = HEADER.size
HEADER_START = Struct(">qiibIhi")
"""The header fields up to the last offset delta."""
PREFIX = Struct(">qii")
"""Base offset, length and leader epoch. The CRC does not cover these fields."""
CRC = Struct(">I")
PRODUCER = Struct(">qh")
LENGTH_AT = 8
LENGTH_END = 12
MAGIC_AT = 16
CRC_AT = 17
CRC_START = 21
ATTRIBUTES_AT = 21
ATTRIBUTES_LOW_AT = 22
"""The position of the low byte of the attributes. All defined attribute bits are in this byte."""
LAST_OFFSET_DELTA_AT = 23
MAX_TIMESTAMP_AT = 35
PRODUCER_AT = 43
BASE_SEQUENCE_AT = 53
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
    count: int  # type: ignore[assignment]  # the field's name in the format; ``tuple.count`` is not needed

    @property
    def size(self) -> int:
        """The size of the whole batch in bytes."""
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
        """The sequence number of the last record, or -1 if the producer is not idempotent. Numbers wrap from 2**31 - 1
        to 0.
        """
        if self.base_sequence < 0:
            return -1
        return (self.base_sequence + self.last_offset_delta) % SEQUENCE_RANGE


_unpack_from = HEADER.unpack_from
_new_tuple = tuple.__new__
_LENGTH_FIELD = BatchHeader._fields.index("length")
_MAGIC_FIELD = BatchHeader._fields.index("magic")


def read_header(buf: Buffer, pos: int = 0) -> BatchHeader:
    """Decode the header at ``pos``. The caller must check that the batch is complete."""
    try:
        fields = _unpack_from(buf, pos)
    except StructError:
        remaining = len(buf) - pos
        raise CorruptRecords(
            f"{remaining} bytes at {pos} are too few for a header of {HEADER_SIZE} bytes"
        ) from None
    if fields[_MAGIC_FIELD] != MAGIC:
        raise InvalidRecords(
            f"the record batch has format {fields[_MAGIC_FIELD]}, expected {MAGIC}",
            hint="use a client that supports Kafka 0.11 or later",
        )
    if fields[_LENGTH_FIELD] < LENGTH_MIN:
        raise CorruptRecords(f"batch length {fields[_LENGTH_FIELD]} is below the minimum of {LENGTH_MIN}")
    return _new_tuple(BatchHeader, fields)


def codec_of(batch: Buffer) -> int:
    """Return the codec in the header, or 0 if the header is incomplete. The batch is not validated."""
    return batch[ATTRIBUTES_LOW_AT] & CODEC_MASK if len(batch) > ATTRIBUTES_LOW_AT else 0


def transactional_producer(batch: Buffer) -> tuple[int, int] | None:
    """Return the producer's id and epoch if the batch is marked as transactional. The batch is not validated."""
    if len(batch) < HEADER_SIZE or not batch[ATTRIBUTES_LOW_AT] & TRANSACTIONAL_BIT:
        return None
    producer_id, epoch = PRODUCER.unpack_from(batch, PRODUCER_AT)
    return (producer_id, epoch) if producer_id >= 0 else None


def crc_ok(buf: Buffer, pos: int, size: int) -> bool:
    """Whether the CRC of the batch of ``size`` bytes at ``pos`` matches."""
    covered = memoryview(buf)[pos + CRC_START : pos + size]
    if size < HEADER_SIZE or len(covered) != size - CRC_START:
        return False
    (declared,) = CRC.unpack_from(buf, pos + CRC_AT)
    return bool(crc32c(covered) == declared)


def iter_headers(buf: Buffer) -> Iterator[tuple[int, BatchHeader]]:
    """Yield the position and the header of each complete batch. Stop at an incomplete batch."""
    pos = 0
    end = len(buf)
    while end - pos >= HEADER_SIZE:
        header = read_header(buf, pos)
        size = header.length + LENGTH_END
        if size > end - pos:
            return
        yield pos, header
        pos += size


_OFFSET = Struct(">q")
_EPOCH = Struct(">i")
_ATTRIBUTES = Struct(">h")


def set_broker_fields(
    buf: bytearray | memoryview, pos: int, base_offset: int, leader_epoch: int, append_time_ms: int | None
) -> None:
    """Write the base offset and the leader epoch into the batch at ``pos``, in place. The CRC remains valid.

    With ``append_time_ms``, all its records get that timestamp, and the batch gets a new CRC.
    """
    _OFFSET.pack_into(buf, pos, base_offset)
    _EPOCH.pack_into(buf, pos + LENGTH_END, leader_epoch)
    if append_time_ms is not None:
        (attributes,) = _ATTRIBUTES.unpack_from(buf, pos + ATTRIBUTES_AT)
        _ATTRIBUTES.pack_into(buf, pos + ATTRIBUTES_AT, attributes | APPEND_TIME_BIT)
        _OFFSET.pack_into(buf, pos + MAX_TIMESTAMP_AT, append_time_ms)
        seal(buf, pos)


def with_max_timestamp(batch: Buffer, max_timestamp: int) -> bytearray:
    """Return a copy of the batch that has ``max_timestamp``, create-time timestamps and a new CRC."""
    corrected = bytearray(batch)
    (attributes,) = _ATTRIBUTES.unpack_from(corrected, ATTRIBUTES_AT)
    _ATTRIBUTES.pack_into(corrected, ATTRIBUTES_AT, attributes & ~APPEND_TIME_BIT)
    _OFFSET.pack_into(corrected, MAX_TIMESTAMP_AT, max_timestamp)
    seal(corrected, 0)
    return corrected


def seal(buf: bytearray | memoryview, pos: int) -> None:
    """Compute the CRC of the batch at ``pos`` and write it into the batch."""
    (length,) = _EPOCH.unpack_from(buf, pos + LENGTH_AT)
    with memoryview(buf) as view:
        checked = view[pos + CRC_START : pos + LENGTH_END + length]
        crc = crc32c(checked)
        checked.release()
    CRC.pack_into(buf, pos + CRC_AT, crc)


_TIMESTAMP_MIN = -(2**63)
_TIMESTAMP_MAX = 2**63 - 1


class BatchSummary(NamedTuple):
    max_timestamp: int
    min_timestamp: int
    has_null_key: bool


def check_batch(batch: Buffer, limits: RecordLimits) -> BatchSummary:
    """Validate that ``batch`` is exactly one intact batch; returns a summary of its records."""
    header = intact_header(batch)
    plain = unpack_batch(batch, header, limits)
    summary = validate_batch(plain, header.count, limits)
    earliest = header.base_timestamp + summary.delta_min
    latest = header.base_timestamp + summary.delta_max
    if earliest < _TIMESTAMP_MIN or latest > _TIMESTAMP_MAX:
        raise InvalidRecords(f"timestamps from {earliest} to {latest} do not fit in 64 bits")
    return BatchSummary(latest, earliest, summary.has_null_key)


def read_records(batch: Buffer, limits: RecordLimits) -> list[Record]:
    """Validate a batch and return its records, with their offsets and timestamps."""
    header = intact_header(batch)
    plain = unpack_batch(batch, header, limits)
    validate_batch(plain, header.count, limits)
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
        raise CorruptRecords(f"the batch declares {header.size} bytes, got {len(batch)}")
    if crc32c(memoryview(batch)[CRC_START:]) != header.crc:
        raise CorruptRecords(f"the batch of {len(batch)} bytes does not match its checksum")
    return header


def check_count(header: BatchHeader, limits: RecordLimits) -> None:
    count = header.count
    if count < 1 or count != header.last_offset_delta + 1:
        raise InvalidRecords(
            f"the batch declares {count} records, but its last offset delta is {header.last_offset_delta}"
        )
    if count > limits.records_max:
        raise RecordsTooLarge(
            f"the batch has {count} records", hint=f"send at most {limits.records_max} records per batch"
        )


def unpack_batch(batch: Buffer, header: BatchHeader, limits: RecordLimits) -> memoryview:
    """Return the uncompressed bytes of the records."""
    check_count(header, limits)
    return unpack_records(batch, header, limits)


def unpack_records(batch: Buffer, header: BatchHeader, limits: RecordLimits) -> memoryview:
    if header.codec >= len(CODEC_NAMES):
        raise unknown_codec(header.codec)
    packed = memoryview(batch)[HEADER_SIZE:]
    if header.codec == NO_CODEC:
        return packed
    buffer, size = unpack(header.codec, packed, limits.unpacked_bytes_max)
    return memoryview(buffer)[:size]


def validate_batch(plain: memoryview, count: int, limits: RecordLimits) -> RecordsSummary:
    """Validate the records; raises ``InvalidRecords`` for the first invalid record."""
    if fast_validate is not None:
        return fast_validate(plain, 0, count, limits)
    return validate_records(plain, 0, len(plain), range(count), limits)


FastValidate = Callable[[Buffer, int, int, RecordLimits], RecordsSummary]

fast_validate: FastValidate | None = None

try:
    from headrace.records import _walk
except ImportError:
    pass
else:

    def _fast_validate(buf: Buffer, start: int, count: int, limits: RecordLimits) -> RecordsSummary:
        """Validate ``count`` records from ``start`` to exactly the end of ``buf``."""
        validated, position, delta_min, delta_max, has_null_key = _walk.walk(
            buf, start, count, limits.headers_max
        )
        summary = RecordsSummary(delta_min, delta_max, has_null_key)
        if validated < count:
            summary |= validate_records(buf, position, len(buf), range(validated, count), limits)
        return summary

    fast_validate = _fast_validate

VALIDATES_IN_C = fast_validate is not None
