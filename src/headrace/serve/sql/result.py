"""Maps the columns of views to DuckDB types, and encodes result rows as Arrow or as JSON in the log's JSON format.

text, enum            VARCHAR
int                   BIGINT
float                 DOUBLE; JSON writes NaN and infinities as text
bool                  BOOLEAN
decimal               DECIMAL with the declared precision and scale; VARCHAR for more than 38 digits
time                  TIMESTAMP WITH TIME ZONE, UTC
date                  DATE
bytes                 BLOB
list, map, record     JSON
"""

from __future__ import annotations

import base64
import datetime
import decimal
from collections.abc import Callable
from typing import Any

import msgspec
import pyarrow as pa

from headrace.model.codec.scalar_text import date_text, time_text
from headrace.model.kinds import Digits, Field, List, Map, Record, Scalar
from headrace.serve.errors import SqlLimitExceeded

__all__ = ["arrow_bytes", "engine_type", "json_bytes", "quoted"]

_encoder = msgspec.json.Encoder(decimal_format="number")
_json = msgspec.json.Decoder(msgspec.Raw).decode
"""Rejects invalid JSON: DuckDB's JSON type accepts NaN and trailing commas."""


def json_bytes(
    reader: pa.RecordBatchReader, types: list[str], rows_max: int, bytes_max: int
) -> tuple[int, bytes]:
    """Encode each row as an array, because a statement can return the same column name twice."""
    converters = [_converter(kind, field.type) for kind, field in zip(types, reader.schema, strict=True)]
    encoded_batches: list[bytes] = []
    rows = size = 0
    for batch in reader:
        rows = expect_rows(rows + batch.num_rows, rows_max)
        columns = [
            [convert(value) for value in column.to_pylist()]
            for convert, column in zip(converters, batch.columns, strict=True)
        ]
        if batch.num_rows:
            encoded_batches.append(_encoder.encode([*zip(*columns, strict=True)])[1:-1])
            size = expect_size(size + len(encoded_batches[-1]), bytes_max)
    return rows, b"[" + b",".join(encoded_batches) + b"]"


def arrow_bytes(reader: pa.RecordBatchReader, rows_max: int, bytes_max: int) -> tuple[int, bytes]:
    sink = pa.BufferOutputStream()
    rows = 0
    with pa.ipc.new_stream(sink, reader.schema) as writer:
        for batch in reader:
            rows = expect_rows(rows + batch.num_rows, rows_max)
            writer.write_batch(batch)
            expect_size(sink.tell(), bytes_max)
    return rows, sink.getvalue().to_pybytes()


def expect_rows(rows: int, maximum: int) -> int:
    if rows > maximum:
        raise SqlLimitExceeded(
            f"the result has more than {maximum} rows",
            hint="use LIMIT, or raise serve.sql_rows_max",
        )
    return rows


def expect_size(size: int, maximum: int) -> int:
    if size > maximum:
        raise SqlLimitExceeded(
            f"the result has more than {maximum} bytes", hint="select fewer columns or rows"
        )
    return size


def _converter(kind: str, arrow: pa.DataType) -> Callable[[Any], Any]:
    if kind == "JSON":
        return lambda value: None if value is None else _json(value.encode())
    if pa.types.is_integer(arrow) or pa.types.is_boolean(arrow) or pa.types.is_string(arrow):
        return lambda value: value
    return to_json_value


def to_json_value(value: Any) -> Any:
    """Convert a value to the log's JSON format."""
    match value:
        case None | bool() | int() | str() | decimal.Decimal():
            return value
        case float():
            return "NaN" if value != value else value if abs(value) != float("inf") else _infinite(value)
        case datetime.datetime():
            return time_text(value) if value.tzinfo else value.isoformat()
        case datetime.date():
            return date_text(value)
        case bytes():
            return base64.b64encode(value).decode()
        case dict():
            return {str(name): to_json_value(member) for name, member in value.items()}
        case list() | tuple():
            return [to_json_value(element) for element in value]
    return str(value)


def _infinite(value: float) -> str:
    return "Infinity" if value > 0 else "-Infinity"


_DUCKDB_TYPES = {
    "text": "VARCHAR",
    "int": "BIGINT",
    "float": "DOUBLE",
    "bool": "BOOLEAN",
    "time": "TIMESTAMP WITH TIME ZONE",
    "date": "DATE",
    "bytes": "BLOB",
}
_DIGITS_MAX = 38


def engine_type(field: Field) -> str:
    match field.kind:
        case Scalar(name):
            return _DUCKDB_TYPES[name]
        case Digits(precision, scale) if precision <= _DIGITS_MAX:
            return f"DECIMAL({precision}, {scale})"
        case List() | Map() | Record():
            return "JSON"
    return "VARCHAR"


def quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
