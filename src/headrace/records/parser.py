"""aiokafka's C parser, made safe for bytes from strangers and quick for whole batches.

The parser wants a header of 61 bytes before the records; it gets one of ours, with offset and timestamp 0, so that what
it reports are the deltas themselves and nothing can overflow. It may read a few bytes past the end before it notices,
so there must be zero bytes there (``SLACK``). Its errors are of many kinds: any of them only means "not proven here".
"""

from __future__ import annotations

from operator import attrgetter

from aiokafka.errors import CorruptRecordException
from aiokafka.record._crecords import default_records

from headrace.records.header import HEADER, HEADER_SIZE, MAGIC, Buffer
from headrace.records.limits import RecordLimits
from headrace.records.record import Facts, Record

__all__ = ["SLACK", "parse_facts", "parse_records", "plain_header"]

SLACK = bytes(16)

_PARSER_ERRORS = (CorruptRecordException, UnicodeDecodeError, OverflowError, MemoryError)


def plain_header(size: int, count: int) -> bytes:
    return HEADER.pack(0, HEADER_SIZE - 12 + size, 0, MAGIC, 0, 0, count - 1, 0, 0, -1, -1, -1, count)


def parse_facts(batch: Buffer, indexes: range, limits: RecordLimits) -> Facts | None:
    """The walk's facts about an unpacked batch under a plain header, or None where only the walk can tell."""
    deltas = []
    has_null_key = False
    try:
        for index, record in zip(indexes, default_records.DefaultRecordBatch(batch), strict=True):
            if record.offset != index:
                return None
            deltas.append(record.timestamp)
            if record.key is None:
                has_null_key = True
            if record.headers and len(record.headers) > limits.headers_max:
                return None
    except _PARSER_ERRORS:
        return None
    return Facts(min(deltas), max(deltas), has_null_key)


_fields = attrgetter("offset", "timestamp", "key", "value", "headers")


def parse_records(batch: Buffer) -> list[Record]:
    """All records of an unpacked batch that has been walked."""
    return [Record(*_fields(record)) for record in default_records.DefaultRecordBatch(batch)]
