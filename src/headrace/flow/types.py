"""Kinds of fields as Spark's types, and back."""

from __future__ import annotations

from typing import Any

from pyspark.sql import types as T

from headrace.model.errors import SchemaError
from headrace.model.kinds import Choice, Digits, Field, Kind, Many, Named, Plain, Record
from headrace.model.place import Place
from headrace.model.schema import Schema

__all__ = ["fields_of", "parsed_struct", "struct_of", "type_of"]

_PLAIN: dict[str, T.DataType] = {
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
        case Plain(name):
            return _PLAIN[name]
        case Digits(precision, scale):
            return T.DecimalType(precision, scale)
        case Choice():
            return T.StringType()
        case Many(of, optional):
            return T.ArrayType(type_of(of), optional)
        case Named(of, optional):
            return T.MapType(T.StringType(), type_of(of), optional)
        case Record(fields):
            return struct_of(fields)


def struct_of(fields: tuple[Field, ...]) -> T.StructType:
    return T.StructType([T.StructField(one.name, type_of(one.kind), one.optional) for one in fields])


def parsed_struct(fields: tuple[Field, ...]) -> T.StructType:
    """As it is read from JSON: whatever is not there is null, until it is held against the schema."""
    return T.StructType([T.StructField(one.name, _nullable(type_of(one.kind)), True) for one in fields])


def _nullable(of: T.DataType) -> T.DataType:
    if isinstance(of, T.ArrayType):
        return T.ArrayType(_nullable(of.elementType), True)
    if isinstance(of, T.MapType):
        return T.MapType(of.keyType, _nullable(of.valueType), True)
    if isinstance(of, T.StructType):
        return T.StructType([T.StructField(one.name, _nullable(one.dataType), True) for one in of.fields])
    return of


def fields_of(
    struct: T.StructType, *, key: tuple[str, ...], of: str, place: Place | None
) -> tuple[Field, ...]:
    """What a function returns, as fields; those of the key must be there, whatever Spark thinks of them."""
    return tuple(
        Field(one.name, _kind_of(one.dataType, one.name, of, place), one.nullable and one.name not in key)
        for one in struct.fields
    )


_BACK: dict[type[T.DataType], Plain] = {
    T.StringType: Plain("text"),
    T.VarcharType: Plain("text"),
    T.CharType: Plain("text"),
    T.ByteType: Plain("int"),
    T.ShortType: Plain("int"),
    T.IntegerType: Plain("int"),
    T.LongType: Plain("int"),
    T.FloatType: Plain("float"),
    T.DoubleType: Plain("float"),
    T.BooleanType: Plain("bool"),
    T.TimestampType: Plain("time"),
    T.TimestampNTZType: Plain("time"),
    T.DateType: Plain("date"),
    T.BinaryType: Plain("bytes"),
}


def _kind_of(found: Any, path: str, of: str, place: Place | None) -> Kind:
    if isinstance(found, T.DecimalType):
        return Digits(found.precision, found.scale)
    if isinstance(found, T.ArrayType):
        return Many(_kind_of(found.elementType, path, of, place), found.containsNull)
    if isinstance(found, T.MapType) and isinstance(found.keyType, T.StringType):
        return Named(_kind_of(found.valueType, path, of, place), found.valueContainsNull)
    if isinstance(found, T.StructType):
        return Record(
            tuple(
                Field(one.name, _kind_of(one.dataType, f"{path}.{one.name}", of, place), one.nullable)
                for one in found.fields
            )
        )
    plain = _BACK.get(type(found))
    if plain is None:
        raise SchemaError(
            f"column {path} of flow {of} is a {found.simpleString()}, which a topic cannot hold",
            place=place,
            hint="cast it to text, a number, a truth value, a time, a date, bytes, or a list, map or struct of these",
        )
    return plain


def schema_of_output(struct: T.StructType, *, name: str, key: tuple[str, ...], place: Place | None) -> Schema:
    return Schema(name, fields_of(struct, key=key, of=name, place=place))
