"""Derived rows written as keys and values by the plain-Python codec, in Spark's Python workers.

A proof must not write what it expects by the code that it checks. The running flow writes its rows by ``to_json`` of
Spark (``headrace.flow.encoding``); here every row goes through ``headrace.model.writing``. Python and Spark spell some
floats differently, so values are compared as values and not as text.

The flow writes what its function returns, also a null that the schema does not allow. So no field is held against the
schema here: a reader that cannot take the value says so.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T
from pyspark.sql.pandas.types import to_arrow_schema

from headrace.flow.encoding import DELETED
from headrace.model.errors import ValueDoesNotFit
from headrace.model.kinds import Choice, Field, Kind, Many, Named, Plain, Record
from headrace.model.schema import Schema
from headrace.model.values import Codec

__all__ = ["encode_plainly", "spell_plainly"]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def encode_plainly(
    rows: DataFrame, schema: Schema, key: tuple[str, ...], beside: Sequence[str] = ()
) -> DataFrame:
    """Columns ``key`` (null where a field of it is), ``value`` (null deletes), and those to be kept ``beside`` them."""
    names = [one.name for one in schema.fields]
    types = {one.name: one for one in rows.schema.fields}
    kept = [types[name] for name in beside]
    shape = T.StructType(
        [T.StructField("key", T.StringType()), T.StructField("value", T.StringType()), *kept]
    )
    deletes = DELETED in types
    work = _Work(
        Schema(schema.name, _loosened(schema.fields)),
        key,
        tuple(_to_python(types[name].dataType) for name in names),
        deletes,
        shape,
    )
    columns = [_widened(types[name]) for name in names]
    kept_columns = [F.col(one.name) for one in kept]
    return rows.select(*columns, *([DELETED] if deletes else []), *kept_columns).mapInArrow(work.run, shape)


def spell_plainly(written: DataFrame, schema: Schema) -> DataFrame:
    """The same records, each ``value`` spelled as this codec spells it; one that it would alter stays as it is."""
    work = _Spelling(Schema(schema.name, _loosened(schema.fields)))
    return written.mapInArrow(work.run, written.schema)


@dataclass(frozen=True, slots=True)
class _Spelling:
    schema: Schema

    def run(self, records: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        codec = Codec(self.schema)
        for some in records:
            at = some.schema.get_field_index("value")
            values = [None if one is None else _spelled(codec, one) for one in some.column(at).to_pylist()]
            yield some.set_column(at, some.schema.field(at), pa.array(values, pa.string()))


def _spelled(codec: Codec, value: str) -> str:
    try:
        spelled = codec.encode(codec.decode(value.encode())).decode()
        same = spelled == value or _parsed(spelled) == _parsed(value)
    except (ValueDoesNotFit, ValueError, RecursionError):
        return value
    return spelled if same else value


def _parsed(text: str) -> Any:
    return json.loads(text, parse_float=Decimal)


@dataclass(frozen=True, slots=True)
class _Work:
    """What is sent to the workers."""

    schema: Schema
    key: tuple[str, ...]
    conversions: tuple[_Conversion | None, ...]
    deletes: bool
    shape: T.StructType

    def run(self, rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        schema = to_arrow_schema(self.shape, timezone="UTC")
        codec = Codec(self.schema)
        write_key, write = codec.key(self.key).encode, codec.encode
        names = [one.name for one in self.schema.fields]
        for some in rows:
            columns = [_values(some.column(at), convert) for at, convert in enumerate(self.conversions)]
            keys: list[bytes | None] = []
            values: list[bytes | None] = []
            deleted = some.column(DELETED).to_pylist() if self.deletes else [False] * some.num_rows
            for gone, *row in zip(deleted, *columns, strict=True):
                fields = dict(zip(names, row, strict=True))
                try:
                    keys.append(write_key(fields))
                except ValueDoesNotFit:
                    keys.append(None)
                values.append(None if gone else write(fields))
            kept = [some.column(name) for name in schema.names[2:]]
            texts = [pa.array(one, pa.binary()).cast(pa.string()) for one in (keys, values)]
            yield pa.RecordBatch.from_arrays([*texts, *kept], schema=schema)


@dataclass(frozen=True, slots=True)
class _Conversion:
    """From what Arrow gives for a type to what the codec takes; a class, since it is sent to the workers."""

    type: T.DataType


def _values(column: pa.Array, conversion: _Conversion | None) -> list[Any]:
    if conversion is None:
        found: list[Any] = column.to_pylist()
        return found
    if isinstance(conversion.type, (T.TimestampType, T.TimestampNTZType)):
        # As numbers, which is many times faster than Arrow's own way to Python.
        numbers = column.cast(pa.timestamp("us")).cast(pa.int64()).to_pylist()
        return [None if one is None else _EPOCH + timedelta(microseconds=one) for one in numbers]
    convert = _converter(conversion.type)
    return [None if one is None else convert(one) for one in column.to_pylist()]


def _to_python(of: T.DataType) -> _Conversion | None:
    changes = (T.TimestampType, T.TimestampNTZType, T.ArrayType, T.MapType, T.StructType)
    return _Conversion(of) if isinstance(of, changes) else None


def _converter(of: T.DataType) -> Callable[[Any], Any]:
    match of:
        case T.TimestampNTZType():
            # A time without a zone is written as if it were of UTC.
            return lambda value: value.replace(tzinfo=UTC)
        case T.ArrayType():
            element = _converter(of.elementType)
            return lambda value: [None if one is None else element(one) for one in value]
        case T.MapType():
            named = _converter(of.valueType)
            return lambda value: {name: None if one is None else named(one) for name, one in value}
        case T.StructType():
            parts = {one.name: _converter(one.dataType) for one in of.fields}
            return lambda value: {
                name: None if one is None else parts[name](one) for name, one in value.items()
            }
    return lambda value: value


def _widened(field: T.StructField) -> Column:
    """A float of 32 bits is the number that its shortest text says, which is not the one that its bits say."""
    column = F.col(f"`{field.name.replace('`', '``')}`")
    as_text = _replaced(field.dataType, T.StringType())
    if as_text == field.dataType:
        return column
    return column.cast(as_text).cast(_replaced(field.dataType, T.DoubleType())).alias(field.name)


def _replaced(of: T.DataType, narrow: T.DataType) -> T.DataType:
    match of:
        case T.FloatType():
            return narrow
        case T.ArrayType():
            return T.ArrayType(_replaced(of.elementType, narrow), of.containsNull)
        case T.MapType():
            return T.MapType(of.keyType, _replaced(of.valueType, narrow), of.valueContainsNull)
        case T.StructType():
            return T.StructType(
                [T.StructField(one.name, _replaced(one.dataType, narrow), one.nullable) for one in of.fields]
            )
    return of


def _loosened(fields: tuple[Field, ...]) -> tuple[Field, ...]:
    return tuple(replace(one, kind=_loose(one.kind), optional=True, default=None) for one in fields)


def _loose(kind: Kind) -> Kind:
    match kind:
        case Choice():
            return Plain("text")
        case Many(of, _):
            return Many(_loose(of), True)
        case Named(of, _):
            return Named(_loose(of), True)
        case Record(fields):
            return Record(_loosened(fields))
    return kind
