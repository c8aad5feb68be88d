"""Kinds of fields as Spark's types, and back.

What is parsed from JSON has a type of its own where Spark would alter a value in silence: a decimal number is read with
more digits than it may have, so that one too many is seen instead of rounded.
"""

from __future__ import annotations

from typing import Any

from pyspark.sql import types as T

from headrace.model.errors import SchemaError
from headrace.model.kinds import Choice, Digits, Field, Kind, Many, Named, Plain, Record
from headrace.model.place import Place
from headrace.model.schema import Schema

__all__ = ["fields_of", "parsed_struct", "parsed_type", "struct_of", "type_of"]

_PLAIN: dict[str, T.DataType] = {
    "text": T.StringType(),
    "int": T.LongType(),
    "float": T.DoubleType(),
    "bool": T.BooleanType(),
    "time": T.TimestampType(),
    "date": T.DateType(),
    "bytes": T.BinaryType(),
}
_MOST_DIGITS, _READ_SCALE, _SAFE_SCALE = 38, 18, 12


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


def parsed_type(kind: Kind) -> T.DataType:
    """As it is read from JSON, before it is held against the schema."""
    match kind:
        case Digits(precision, scale):
            roomy = precision - scale <= _MOST_DIGITS - _READ_SCALE and scale <= _SAFE_SCALE
            return T.DecimalType(_MOST_DIGITS, _READ_SCALE) if roomy else T.StringType()
        case Many(of, _):
            return T.ArrayType(parsed_type(of), True)
        case Named(of, _):
            return T.MapType(T.StringType(), parsed_type(of), True)
        case Record(fields):
            return parsed_struct(fields)
        case _:
            return type_of(kind)


def parsed_struct(fields: tuple[Field, ...]) -> T.StructType:
    return T.StructType([T.StructField(one.name, parsed_type(one.kind), True) for one in fields])


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
