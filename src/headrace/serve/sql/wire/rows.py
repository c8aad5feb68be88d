"""Encodes result rows as messages of PostgreSQL's protocol, in text or binary format. Runs in the SQL worker process.

If the client requests binary format for a type without binary encoding, the column gets the type text, because a text
has the same bytes in both formats.
"""

from __future__ import annotations

import datetime
import decimal
import struct
import uuid
from collections.abc import Callable
from typing import Any

import msgspec
import pyarrow as pa

from headrace.serve.sql.result import expect_rows, expect_size, to_json_value
from headrace.serve.sql.wire.parameters import ARRAYS, ELEMENTS, array_binary, array_text

__all__ = ["SIZES", "TEXT", "oid_of", "row_bytes"]

BOOL, BYTEA, INT8, INT2, INT4, TEXT, JSON = 16, 17, 20, 21, 23, 25, 114
FLOAT4, FLOAT8, DATE, TIME, TIMESTAMP, TIMESTAMPTZ, NUMERIC, UUID = (
    700,
    701,
    1082,
    1083,
    1114,
    1184,
    1700,
    2950,
)
SIZES = {
    BOOL: 1,
    INT8: 8,
    INT2: 2,
    INT4: 4,
    FLOAT4: 4,
    FLOAT8: 8,
    DATE: 4,
    TIME: 8,
    TIMESTAMP: 8,
    TIMESTAMPTZ: 8,
    UUID: 16,
}
_OIDS = {
    "BOOLEAN": BOOL,
    "BLOB": BYTEA,
    "BIGINT": INT8,
    "SMALLINT": INT2,
    "TINYINT": INT2,
    "UTINYINT": INT2,
    "INTEGER": INT4,
    "USMALLINT": INT4,
    "UINTEGER": INT8,
    "UBIGINT": NUMERIC,
    "HUGEINT": NUMERIC,
    "UHUGEINT": NUMERIC,
    "FLOAT": FLOAT4,
    "DOUBLE": FLOAT8,
    "DATE": DATE,
    "TIME": TIME,
    "TIMESTAMP": TIMESTAMP,
    "TIMESTAMP WITH TIME ZONE": TIMESTAMPTZ,
    "UUID": UUID,
    "JSON": JSON,
}
_EPOCH_DAY = datetime.date(2000, 1, 1).toordinal()
_EPOCH = datetime.datetime(2000, 1, 1)
_MICROSECOND = datetime.timedelta(microseconds=1)
_json = msgspec.json.Encoder(decimal_format="number")


def oid_of(type_name: str, *, binary: bool) -> int:
    """Return the OID for a DuckDB type. Lists of scalars become arrays; other lists become JSON text."""
    if type_name.endswith("[]"):
        element = type_name.removesuffix("[]")
        is_scalar = element in _OIDS or element == "VARCHAR" or _is_decimal(element)
        return ARRAYS[oid_of(element, binary=binary)] if is_scalar else TEXT
    oid = NUMERIC if _is_decimal(type_name) else _OIDS.get(type_name, TEXT)
    return TEXT if binary and oid == TIME else oid


def _is_decimal(type_name: str) -> bool:
    return type_name.startswith("DECIMAL(") and type_name.endswith(")")


def row_bytes(
    reader: pa.RecordBatchReader, types: list[str], binary: list[bool], rows_max: int, bytes_max: int
) -> tuple[int, bytes]:
    encoders = [
        _binary(oid_of(type_name, binary=True)) if as_binary else _text(oid_of(type_name, binary=False))
        for type_name, as_binary in zip(types, binary, strict=True)
    ]
    head = struct.pack(">h", len(types))
    out = bytearray()
    rows = 0
    for batch in reader:
        rows = expect_rows(rows + batch.num_rows, rows_max)
        columns = [
            [_field(encode, value) for value in column.to_pylist()]
            for encode, column in zip(encoders, batch.columns, strict=True)
        ]
        for row in zip(*columns, strict=True) if columns else [()] * batch.num_rows:
            body = b"".join(row)
            out += b"D" + struct.pack(">i", len(body) + 6) + head + body
        expect_size(len(out), bytes_max)
    return rows, bytes(out)


def _field(encode: Callable[[Any], bytes], value: Any) -> bytes:
    if value is None:
        return b"\xff\xff\xff\xff"
    raw = encode(value)
    return struct.pack(">i", len(raw)) + raw


# Text format


def _text(oid: int) -> Callable[[Any], bytes]:
    if oid in ELEMENTS:
        encode = _text(ELEMENTS[oid])
        return lambda value: array_text(value, encode)
    match oid:
        case 16:
            return lambda value: b"t" if value else b"f"
        case 17:
            return lambda value: b"\\x" + value.hex().encode()
        case 700 | 701:
            return _float_text
        case 1114:
            return lambda value: value.isoformat(" ").encode()
        case 1184:
            return lambda value: value.astimezone(datetime.UTC).isoformat(" ").removesuffix(":00").encode()
        case 1700:
            return lambda value: format(value, "f").encode()
    return _any_text


def _float_text(value: float) -> bytes:
    if value != value:
        return b"NaN"
    return (
        b"Infinity"
        if value == float("inf")
        else b"-Infinity"
        if value == -float("inf")
        else repr(value).encode()
    )


def _any_text(value: Any) -> bytes:
    if isinstance(value, str):
        return value.encode("utf-8", "replace")
    if isinstance(value, (list, dict, tuple)):
        return _json.encode(to_json_value(value))
    return str(value).encode()


# Binary format


def _binary(oid: int) -> Callable[[Any], bytes]:
    if oid in ELEMENTS:
        element = ELEMENTS[oid]
        encode = _binary(element)
        return lambda value: array_binary(value, element, encode)
    match oid:
        case 16:
            return lambda value: b"\1" if value else b"\0"
        case 17:
            return bytes
        case 20:
            return struct.Struct(">q").pack
        case 21:
            return struct.Struct(">h").pack
        case 23:
            return struct.Struct(">i").pack
        case 700:
            return struct.Struct(">f").pack
        case 701:
            return struct.Struct(">d").pack
        case 1082:
            return lambda value: struct.pack(">i", value.toordinal() - _EPOCH_DAY)
        case 1114 | 1184:
            return _timestamp
        case 1700:
            return _numeric
        case 2950:
            return lambda value: uuid.UUID(str(value)).bytes
    return _any_text


def _timestamp(value: datetime.datetime) -> bytes:
    if value.tzinfo is not None:
        value = value.astimezone(datetime.UTC).replace(tzinfo=None)
    return struct.pack(">q", (value - _EPOCH) // _MICROSECOND)


def _numeric(value: decimal.Decimal | int) -> bytes:
    """Encode a numeric: number of base-10,000 digits, weight of the first digit, sign, scale, and the digits."""
    # abs() would round to the precision of the decimal context.
    whole = format(decimal.Decimal(value).copy_abs(), "f")
    before, _, after = whole.partition(".")
    scale = len(after)
    before = before.rjust(-(-len(before) // 4) * 4, "0")
    after = after.ljust(-(-len(after) // 4) * 4, "0")
    groups = [int((before + after)[at : at + 4]) for at in range(0, len(before) + len(after), 4)]
    weight = len(before) // 4 - 1
    while groups and groups[0] == 0:
        groups.pop(0)
        weight -= 1
    while groups and groups[-1] == 0:
        groups.pop()
    sign = 0x4000 if value < 0 else 0
    return struct.pack(f">hhHh{len(groups)}h", len(groups), weight if groups else 0, sign, scale, *groups)
