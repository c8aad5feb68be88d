"""Rows of an answer as bytes: JSON in the form of the log's values, or Arrow's stream."""

from __future__ import annotations

import base64
import datetime
import decimal
from collections.abc import Callable
from typing import Any

import msgspec
import pyarrow as pa

from headrace.model.texts import date_text, time_text
from headrace.serve.sql.errors import SqlTooMuch

__all__ = ["arrow_bytes", "json_bytes"]

_encoder = msgspec.json.Encoder(decimal_format="number")
_json = msgspec.json.Decoder(msgspec.Raw).decode
"""Checks the syntax: the engine's JSON may have NaN in it, and commas that lead nowhere."""


def json_bytes(
    reader: pa.RecordBatchReader, types: list[str], rows_max: int, bytes_max: int
) -> tuple[int, bytes]:
    """Each row is an array: columns of a statement need not have names of their own."""
    makers = [_maker(kind, one.type) for kind, one in zip(types, reader.schema, strict=True)]
    pieces: list[bytes] = []
    rows = size = 0
    for batch in reader:
        rows = expect_rows(rows + batch.num_rows, rows_max)
        columns = [
            [make(one) for one in column.to_pylist()]
            for make, column in zip(makers, batch.columns, strict=True)
        ]
        if batch.num_rows:
            pieces.append(_encoder.encode([*zip(*columns, strict=True)])[1:-1])
            size = expect_size(size + len(pieces[-1]), bytes_max)
    return rows, b"[" + b",".join(pieces) + b"]"


def arrow_bytes(reader: pa.RecordBatchReader, rows_max: int, bytes_max: int) -> tuple[int, bytes]:
    sink = pa.BufferOutputStream()
    rows = 0
    with pa.ipc.new_stream(sink, reader.schema) as writer:
        for batch in reader:
            rows = expect_rows(rows + batch.num_rows, rows_max)
            writer.write_batch(batch)
            expect_size(sink.tell(), bytes_max)
    return rows, sink.getvalue().to_pybytes()


def expect_rows(rows: int, most: int) -> int:
    if rows > most:
        raise SqlTooMuch(
            f"the answer has more than {most} rows",
            hint="ask for fewer with LIMIT, or raise serve.sql_rows_max",
        )
    return rows


def expect_size(size: int, most: int) -> int:
    if size > most:
        raise SqlTooMuch(f"the answer has more than {most} bytes", hint="ask for fewer columns or rows")
    return size


def _maker(kind: str, arrow: pa.DataType) -> Callable[[Any], Any]:
    if kind == "JSON":
        return lambda value: None if value is None else _json(value.encode())
    if pa.types.is_integer(arrow) or pa.types.is_boolean(arrow) or pa.types.is_string(arrow):
        return lambda value: value
    return plain


def plain(value: Any) -> Any:
    """As values of the log are written."""
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
            return {str(name): plain(one) for name, one in value.items()}
        case list() | tuple():
            return [plain(one) for one in value]
    return str(value)


def _infinite(value: float) -> str:
    return "Infinity" if value > 0 else "-Infinity"
