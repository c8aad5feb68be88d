"""Encodes derived rows as keys and values with the plain-Python codec, in Spark's Python workers.

``verify`` must not compute its expected rows with the code that it checks. The running flow encodes its rows with
Spark's ``to_json`` (``headrace.flow.codec``). This module encodes every row with ``headrace.model.codec``. Python and
Spark write some floats differently, so values are compared as values and not as text.

The flow writes every row that its function returns, even a null that the schema does not allow. So this module does not
check fields against the schema. A reader of the topic reports values that do not fit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T
from pyspark.sql.pandas.types import to_arrow_schema

from headrace.flow.codec.codec import DELETED
from headrace.model.codec.codec import new_codec
from headrace.model.errors import ValueDoesNotFit
from headrace.model.kinds import Enum, Field, Kind, List, Map, Record, Scalar
from headrace.model.schema import Schema

__all__ = ["normalize_values", "plain_encode"]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def plain_encode(
    rows: DataFrame, schema: Schema, key: tuple[str, ...], extra_columns: Sequence[str] = ()
) -> DataFrame:
    """Return ``key`` (null if one of its fields is null), ``value`` (null for a deletion) and ``extra_columns``."""
    names = [field.name for field in schema.fields]
    types = {field.name: field for field in rows.schema.fields}
    extra_fields = [types[name] for name in extra_columns]
    shape = T.StructType(
        [T.StructField("key", T.StringType()), T.StructField("value", T.StringType()), *extra_fields]
    )
    deletes = DELETED in types
    work = _Encode(
        Schema(schema.name, _loosen_fields(schema.fields)),
        key,
        tuple(_to_python(types[name].dataType) for name in names),
        deletes,
        shape,
    )
    columns = [_widen_floats(types[name]) for name in names]
    extra = [F.col(extra_field.name) for extra_field in extra_fields]
    return rows.select(*columns, *([DELETED] if deletes else []), *extra).mapInArrow(work.run, shape)


def normalize_values(written: DataFrame, schema: Schema) -> DataFrame:
    """Return the records, each ``value`` encoded again by the plain-Python codec, unless that would alter the value."""
    work = _Normalizer(Schema(schema.name, _loosen_fields(schema.fields)))
    return written.mapInArrow(work.run, written.schema)


@dataclass(frozen=True, slots=True)
class _Normalizer:
    schema: Schema

    def run(self, records: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        codec = new_codec(self.schema)
        for record_batch in records:
            index = record_batch.schema.get_field_index("value")
            values = [
                None if item is None else codec.normalize(item.encode()).decode()
                for item in record_batch.column(index).to_pylist()
            ]
            yield record_batch.set_column(
                index, record_batch.schema.field(index), pa.array(values, pa.string())
            )


@dataclass(frozen=True, slots=True)
class _Encode:
    """Runs in Spark's workers. A class and not a closure, because Spark pickles it."""

    schema: Schema
    key: tuple[str, ...]
    conversions: tuple[_Conversion | None, ...]
    deletes: bool
    shape: T.StructType

    def run(self, rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        schema = to_arrow_schema(self.shape, timezone="UTC")
        codec = new_codec(self.schema)
        write_key, write = codec.key(self.key).encode, codec.encode
        names = [field.name for field in self.schema.fields]
        for record_batch in rows:
            columns = [
                _values(record_batch.column(index), convert) for index, convert in enumerate(self.conversions)
            ]
            keys: list[bytes | None] = []
            values: list[bytes | None] = []
            deleted = (
                record_batch.column(DELETED).to_pylist() if self.deletes else [False] * record_batch.num_rows
            )
            for is_deleted, *row in zip(deleted, *columns, strict=True):
                fields = dict(zip(names, row, strict=True))
                try:
                    keys.append(write_key(fields))
                except ValueDoesNotFit:
                    keys.append(None)
                values.append(None if is_deleted else write(fields))
            extra_fields = [record_batch.column(name) for name in schema.names[2:]]
            texts = [pa.array(column, pa.binary()).cast(pa.string()) for column in (keys, values)]
            yield pa.RecordBatch.from_arrays([*texts, *extra_fields], schema=schema)


@dataclass(frozen=True, slots=True)
class _Conversion:
    """Converts values of an Arrow type to values that the codec accepts. A class, because Spark pickles it."""

    type: T.DataType


def _values(column: pa.Array, conversion: _Conversion | None) -> list[Any]:
    if conversion is None:
        python_values: list[Any] = column.to_pylist()
        return python_values
    if isinstance(conversion.type, (T.TimestampType, T.TimestampNTZType)):
        # Convert through integers, which is many times faster than Arrow's own conversion of times.
        numbers = column.cast(pa.timestamp("us")).cast(pa.int64()).to_pylist()
        return [None if item is None else _EPOCH + timedelta(microseconds=item) for item in numbers]
    convert = _converter(conversion.type)
    return [None if item is None else convert(item) for item in column.to_pylist()]


def _to_python(of: T.DataType) -> _Conversion | None:
    changes = (T.TimestampType, T.TimestampNTZType, T.ArrayType, T.MapType, T.StructType)
    return _Conversion(of) if isinstance(of, changes) else None


def _converter(of: T.DataType) -> Callable[[Any], Any]:
    match of:
        case T.TimestampNTZType():
            # Spark writes a time without a zone as UTC.
            return lambda value: value.replace(tzinfo=UTC)
        case T.ArrayType():
            element = _converter(of.elementType)
            return lambda value: [None if item is None else element(item) for item in value]
        case T.MapType():
            convert_value = _converter(of.valueType)
            return lambda value: {name: None if item is None else convert_value(item) for name, item in value}
        case T.StructType():
            parts = {field.name: _converter(field.dataType) for field in of.fields}
            return lambda value: {
                name: None if item is None else parts[name](item) for name, item in value.items()
            }
    return lambda value: value


def _widen_floats(field: T.StructField) -> Column:
    """Convert 32-bit floats to 64 bits through their text. The flow writes Spark's shortest text of the float, and as a
    64-bit float this text is a different number than the float's exact value.
    """
    column = F.col(f"`{field.name.replace('`', '``')}`")
    as_text = _with_float_type(field.dataType, T.StringType())
    if as_text == field.dataType:
        return column
    return column.cast(as_text).cast(_with_float_type(field.dataType, T.DoubleType())).alias(field.name)


def _with_float_type(of: T.DataType, float_type: T.DataType) -> T.DataType:
    match of:
        case T.FloatType():
            return float_type
        case T.ArrayType():
            return T.ArrayType(_with_float_type(of.elementType, float_type), of.containsNull)
        case T.MapType():
            return T.MapType(of.keyType, _with_float_type(of.valueType, float_type), of.valueContainsNull)
        case T.StructType():
            return T.StructType(
                [
                    T.StructField(field.name, _with_float_type(field.dataType, float_type), field.nullable)
                    for field in of.fields
                ]
            )
    return of


def _loosen_fields(fields: tuple[Field, ...]) -> tuple[Field, ...]:
    return tuple(replace(field, kind=_loosen(field.kind), optional=True, default=None) for field in fields)


def _loosen(kind: Kind) -> Kind:
    match kind:
        case Enum():
            return Scalar("text")
        case List(of, _):
            return List(_loosen(of), True)
        case Map(of, _):
            return Map(_loosen(of), True)
        case Record(fields):
            return Record(_loosen_fields(fields))
    return kind
