"""aiokafka's C parser, made safe for bytes from strangers and quick for whole batches.

The parser wants a header of 61 bytes before the records; it gets one of ours, with offset and timestamp 0, so
that what it reports are the deltas themselves and nothing can overflow. It may read a few bytes past the end
before it notices, so zero bytes must lie there (``SLACK``). It keeps all headers of a record at once, 30 times
their size, so it gets no more than ``WINDOW_BYTES_MAX`` at a time.

It is also more lenient than other readers: it takes numbers of any length and an attributes byte of any length.
What it accepts would stop a Java consumer. So the lengths of all numbers, as short as they can be written, must
add up to exactly the bytes there are: then each of them was written that way, and all readers agree. Where they
do not, or where the parser fails in any of its many ways, the answer is "not proven" and the plain walk decides.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from typing import Protocol

from aiokafka.errors import CorruptRecordException
from aiokafka.record._crecords import default_records

from headrace.records.errors import CorruptRecords
from headrace.records.header import HEADER, HEADER_SIZE, LENGTH_END, MAGIC
from headrace.records.limits import RecordLimits
from headrace.records.record import Facts, Record
from headrace.records.varint import varint_size

__all__ = [
    "SLACK",
    "WINDOW_BYTES_MAX",
    "ParsedRecord",
    "parse_facts",
    "parse_records",
    "parse_window",
    "plain_header",
]

SLACK = bytes(16)
WINDOW_BYTES_MAX = 1024 * 1024

_PARSER_ERRORS = (CorruptRecordException, UnicodeDecodeError, OverflowError, MemoryError)
_INT64_MIN = -(2**63)
_INT64_MAX = 2**63 - 1

# For numbers below 8192: how many bytes they take, and how many a field of that length takes with its length before
# it. A null field takes as many as an empty one.
_SIZES = tuple(map(varint_size, range(8192)))
_FRAMED = tuple(size + number for number, size in enumerate(_SIZES))

_parse = default_records.DefaultRecordBatch
_size_of = default_records.DefaultRecordBatchBuilder.size_of
_fields = attrgetter("offset", "timestamp", "key", "value", "headers")


def plain_header(size: int, count: int) -> bytes:
    return HEADER.pack(0, HEADER_SIZE - LENGTH_END + size, 0, MAGIC, 0, 0, count - 1, 0, 0, -1, -1, -1, count)


def parse_facts(plain: memoryview, first: int, limits: RecordLimits) -> Facts | None:
    """What the plain walk would say of these records, whose offset deltas start at ``first``; None if not proven.

    ``plain`` is uncompressed, under a plain header and with slack behind it.
    """
    try:
        # A record without headers ends in their count, 0: so this sorts out most batches that have some.
        if plain[-1] == 0 and (facts := _facts_without_headers(plain, first)) is not None:
            return facts
    except IndexError:
        pass
    except _PARSER_ERRORS:
        return None
    try:
        return _facts_with_headers(plain, first, limits)
    except _PARSER_ERRORS:
        return None


def _facts_without_headers(plain: memoryview, first: int) -> Facts | None:
    """The usual case, record by record in as few steps as Python allows; None also where a table ends."""
    sizes, framed = _SIZES, _FRAMED
    delta_min, delta_max = _INT64_MAX, _INT64_MIN
    has_null_key = False
    total = 0
    index = first
    fixed = 1 + varint_size(first) + 1  # attributes, offset delta, header count
    wider = 1 << (7 * varint_size(first) - 1)
    for record in _parse(plain):
        if record.offset != index:
            return None
        if index == wider:
            fixed += 1
            wider <<= 7
        delta = record.timestamp
        if delta < delta_min:
            delta_min = delta
        if delta > delta_max:
            delta_max = delta
        key = record.key
        value = record.value
        if key is None:
            has_null_key = True
            key = b""
        if value is None:
            value = b""
        total += framed[framed[len(key)] + framed[len(value)] + sizes[delta] + fixed]
        index += 1
    # A negative delta took its size from the wrong end of the table. Headers would have made the total too small.
    if delta_min < 0 or total != len(plain) - HEADER_SIZE:
        return None
    return Facts(delta_min, delta_max, has_null_key)


def _facts_with_headers(plain: memoryview, first: int, limits: RecordLimits) -> Facts | None:
    delta_min, delta_max = _INT64_MAX, _INT64_MIN
    has_null_key = False
    sizes, known, size_of = _SIZES, len(_SIZES), _size_of
    left = len(plain) - HEADER_SIZE
    index = first
    for offset, delta, key, value, headers in map(_fields, _parse(plain)):
        if offset != index or len(headers) > limits.headers_max:
            return None
        if key is None:
            has_null_key = True
        if delta < delta_min:
            delta_min = delta
        if delta > delta_max:
            delta_max = delta
        body = 1 + size_of(key, value, headers)
        body += sizes[delta] if 0 <= delta < known else varint_size(delta)
        body += sizes[index] if index < known else varint_size(index)
        left -= body + (sizes[body] if body < known else varint_size(body))
        index += 1
    return Facts(delta_min, delta_max, has_null_key) if left == 0 else None


def parse_records(plain: memoryview) -> list[Record]:
    """All records of a batch that has been walked: a stranger's must not come here first."""
    return [Record(*_fields(record)) for record in _parse(plain)]


class ParsedRecord(Protocol):
    """What is asked of one record; offset and timestamp are deltas."""

    @property
    def offset(self) -> int: ...
    @property
    def timestamp(self) -> int: ...
    @property
    def key(self) -> bytes | None: ...
    @property
    def value(self) -> bytes | None: ...
    @property
    def headers(self) -> Sequence[tuple[str, bytes | None]]: ...


def parse_window(plain: memoryview) -> list[ParsedRecord]:
    """The records of a window from our own disk: walked when it was produced, and intact by its CRC."""
    try:
        return list(_parse(plain))
    except _PARSER_ERRORS as error:
        raise CorruptRecords(f"stored records do not read: {error}") from error
