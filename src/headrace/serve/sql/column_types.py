"""The columns of a view for the engine: which types they have, and how plain values become Arrow's.

text, enum            VARCHAR
int                   BIGINT
float                 DOUBLE; the text ``NaN`` is the number
bool                  BOOLEAN
decimal               DECIMAL with the declared digits; VARCHAR beyond 38 of them
time                  TIMESTAMP WITH TIME ZONE, UTC
date                  DATE
bytes                 BLOB
list, map, record     JSON
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

import pyarrow as pa

from headrace.model.kinds import Digits, Field, Many, Named, Plain, Record
from headrace.views.rows import Row

__all__ = ["arrow_schema", "arrow_type", "batches_of", "engine_type", "quoted"]

_ENGINE = {
    "text": "VARCHAR",
    "int": "BIGINT",
    "float": "DOUBLE",
    "bool": "BOOLEAN",
    "time": "TIMESTAMP WITH TIME ZONE",
    "date": "DATE",
    "bytes": "BLOB",
}
_ARROW: dict[str, pa.DataType] = {
    "int": pa.int64(),
    "float": pa.float64(),
    "bool": pa.bool_(),
    "time": pa.timestamp("us", tz="UTC"),
    "date": pa.date32(),
    "bytes": pa.binary(),
}
_DIGITS_MAX = 38
_AT_ONCE = 10_000


def engine_type(field: Field) -> str:
    match field.kind:
        case Plain(name):
            return _ENGINE[name]
        case Digits(precision, scale) if precision <= _DIGITS_MAX:
            return f"DECIMAL({precision}, {scale})"
        case Many() | Named() | Record():
            return "JSON"
    return "VARCHAR"


def arrow_type(field: Field) -> pa.DataType:
    match field.kind:
        case Plain(name):
            return _ARROW.get(name, pa.string())
        case Digits(precision, scale) if precision <= _DIGITS_MAX:
            return pa.decimal128(precision, scale)
    return pa.string()


def arrow_schema(fields: Sequence[Field]) -> pa.Schema:
    """By place, since names may be anything."""
    return pa.schema([(f"c{at}", arrow_type(one)) for at, one in enumerate(fields)])


def batches_of(fields: Sequence[Field], rows: Iterable[Row]) -> Iterator[pa.RecordBatch]:
    schema = arrow_schema(fields)
    makers = [_maker(one.type) for one in schema]
    source = iter(rows)
    while some := list(islice(source, _AT_ONCE)):
        columns = zip(*some, strict=True)
        arrays = [make(values) for make, values in zip(makers, columns, strict=True)]
        yield pa.record_batch(arrays, schema=schema)


def _maker(kind: pa.DataType) -> Callable[[tuple[Any, ...]], pa.Array]:
    if pa.types.is_floating(kind):
        return lambda values: pa.array([None if one is None else float(one) for one in values], kind)
    if pa.types.is_boolean(kind):
        return lambda values: pa.array([None if one is None else bool(one) for one in values], kind)
    if pa.types.is_decimal(kind) or pa.types.is_temporal(kind):
        return lambda values: pa.array(values, pa.string()).cast(kind)
    return lambda values: pa.array(values, kind)


def quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
