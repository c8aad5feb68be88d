"""Converts kinds of fields to Spark types and back, and Python rows to a DataFrame."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as T
from pyspark.sql.pandas.types import to_arrow_schema

from headrace.model.errors import SchemaError, SourceLocation
from headrace.model.kinds import Digits, Enum, Field, Kind, List, Map, Record, Scalar
from headrace.model.schema import Schema

__all__ = ["fields_of", "local_rows", "parsed_struct", "struct_of", "type_of"]

_SPARK_TYPES: dict[str, T.DataType] = {
    "text": T.StringType(),
    "int": T.LongType(),
    "float": T.DoubleType(),
    "bool": T.BooleanType(),
    "time": T.TimestampType(),
    "date": T.DateType(),
    "bytes": T.BinaryType(),
}


def type_of(kind: Kind) -> T.DataType:
    match kind:
        case Scalar(name):
            return _SPARK_TYPES[name]
        case Digits(precision, scale):
            return T.DecimalType(precision, scale)
        case Enum():
            return T.StringType()
        case List(of, optional):
            return T.ArrayType(type_of(of), optional)
        case Map(of, optional):
            return T.MapType(T.StringType(), type_of(of), optional)
        case Record(fields):
            return struct_of(fields)


def struct_of(fields: tuple[Field, ...]) -> T.StructType:
    return T.StructType([T.StructField(field.name, type_of(field.kind), field.optional) for field in fields])


def parsed_struct(fields: tuple[Field, ...]) -> T.StructType:
    """Return the type for parsing JSON. Every field is nullable, because the schema is checked after parsing."""
    return T.StructType([T.StructField(field.name, _nullable(type_of(field.kind)), True) for field in fields])


def _nullable(data_type: T.DataType) -> T.DataType:
    if isinstance(data_type, T.ArrayType):
        return T.ArrayType(_nullable(data_type.elementType), True)
    if isinstance(data_type, T.MapType):
        return T.MapType(data_type.keyType, _nullable(data_type.valueType), True)
    if isinstance(data_type, T.StructType):
        return T.StructType(
            [T.StructField(field.name, _nullable(field.dataType), True) for field in data_type.fields]
        )
    return data_type


def fields_of(
    struct: T.StructType, *, key: tuple[str, ...], of: str, location: SourceLocation | None
) -> tuple[Field, ...]:
    """Convert the columns that a function returns to fields. Key fields are required even if Spark reports nullable."""
    return tuple(
        Field(
            field.name,
            _kind_of(field.dataType, field.name, of, location),
            field.nullable and field.name not in key,
        )
        for field in struct.fields
    )


_SCALARS: dict[type[T.DataType], Scalar] = {
    T.StringType: Scalar("text"),
    T.VarcharType: Scalar("text"),
    T.CharType: Scalar("text"),
    T.ByteType: Scalar("int"),
    T.ShortType: Scalar("int"),
    T.IntegerType: Scalar("int"),
    T.LongType: Scalar("int"),
    T.FloatType: Scalar("float"),
    T.DoubleType: Scalar("float"),
    T.BooleanType: Scalar("bool"),
    T.TimestampType: Scalar("time"),
    T.TimestampNTZType: Scalar("time"),
    T.DateType: Scalar("date"),
    T.BinaryType: Scalar("bytes"),
}


def _kind_of(data_type: Any, path: str, of: str, location: SourceLocation | None) -> Kind:
    if isinstance(data_type, T.DecimalType):
        return Digits(data_type.precision, data_type.scale)
    if isinstance(data_type, T.ArrayType):
        return List(_kind_of(data_type.elementType, path, of, location), data_type.containsNull)
    if isinstance(data_type, T.MapType) and isinstance(data_type.keyType, T.StringType):
        return Map(_kind_of(data_type.valueType, path, of, location), data_type.valueContainsNull)
    if isinstance(data_type, T.StructType):
        return Record(
            tuple(
                Field(
                    field.name, _kind_of(field.dataType, f"{path}.{field.name}", of, location), field.nullable
                )
                for field in data_type.fields
            )
        )
    scalar = _SCALARS.get(type(data_type))
    if scalar is None:
        raise SchemaError(
            f"column {path} of flow {of} has the type {data_type.simpleString()}, which topics do not support",
            location=location,
            hint="cast it to text, a number, a boolean, a time, a date, bytes, or a list, map or struct of these",
        )
    return scalar


def schema_of_output(
    struct: T.StructType, *, name: str, key: tuple[str, ...], location: SourceLocation | None
) -> Schema:
    return Schema(name, fields_of(struct, key=key, of=name, location=location))


def local_rows(spark: SparkSession, rows: Sequence[Mapping[str, Any]], shape: T.StructType) -> DataFrame:
    """Create a DataFrame through Arrow. Each of ``rows`` maps names to values. A map is a list of pairs.

    Reading the DataFrame then needs no Python process. Spark also knows the number of rows, so it broadcasts a small
    DataFrame in joins.
    """
    return spark.createDataFrame(pa.Table.from_pylist(rows, to_arrow_schema(shape, timezone="UTC")), shape)
