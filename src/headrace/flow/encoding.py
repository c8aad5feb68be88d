"""From the rows that a function returns to keys and values of its topic.

A row with a true ``_deleted`` becomes a null value: it deletes its key in every table and view that follows. A row
without a key has nowhere to go, and is left to the caller, who has a place for it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from headrace.model.kinds import Digits, Plain
from headrace.model.schema import Schema

__all__ = ["DELETED", "encode", "key_column"]

DELETED = "_deleted"
_SCALE_PLAIN_MAX = 6
_OPTIONS = {
    "ignoreNullFields": "false",
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS'Z'",
    "timeZone": "UTC",
}


def encode(
    rows: DataFrame, schema: Schema, key: tuple[str, ...], beside: Sequence[str | Column] = ()
) -> DataFrame:
    """Columns ``key`` (null where a field of it is) and ``value`` (null deletes), and those that are to be kept."""
    value = F.to_json(F.struct(*(_written(rows, one.name) for one in schema.fields)), _OPTIONS)
    if DELETED in rows.columns:
        value = F.when(~F.coalesce(F.col(DELETED), F.lit(False)), value)
    return rows.select(key_column(schema, key).alias("key"), value.alias("value"), *beside)


def _written(rows: DataFrame, name: str) -> Column:
    """The column, with a type that to_json writes as we want it."""
    kind = rows.schema[name].dataType
    plain = _plain(kind)
    column = F.col(_quoted(name))
    return column if plain == kind else column.cast(plain).alias(name)


def _plain(kind: T.DataType) -> T.DataType:
    """Of an exact number that is very small Spark writes an exponent; of a variant it never does."""
    match kind:
        case T.DecimalType() if kind.scale > _SCALE_PLAIN_MAX:
            return T.VariantType()
        case T.ArrayType():
            return T.ArrayType(_plain(kind.elementType), kind.containsNull)
        case T.MapType():
            return T.MapType(kind.keyType, _plain(kind.valueType), kind.valueContainsNull)
        case T.StructType():
            return T.StructType(
                [T.StructField(one.name, _plain(one.dataType), one.nullable) for one in kind.fields]
            )
    return kind


def key_column(schema: Schema, key: tuple[str, ...]) -> Column:
    if len(key) == 1:
        return _text(schema, key[0])
    all_there = F.lit(True)
    for name in key:
        all_there = all_there & F.col(_quoted(name)).isNotNull()
    parts = [part for name in key for part in (F.lit(","), _key_part(schema, name))]
    return F.when(all_there, F.concat(F.lit("{"), *parts[1:], F.lit("}")))


def _key_part(schema: Schema, name: str) -> Column:
    """One field of a key of several, as in JSON: ``"name":value``."""
    field = schema.field(name)
    if field is not None and isinstance(field.kind, Digits):
        # With all of its digits, so that one number has one key.
        return F.concat(
            F.lit(f"{json.dumps(name, ensure_ascii=False)}:"), F.col(_quoted(name)).cast("string")
        )
    alone = F.to_json(F.struct(F.col(_quoted(name))), _OPTIONS)
    return F.substring(alone, F.lit(2), F.length(alone) - 2)


def _text(schema: Schema, name: str) -> Column:
    field = schema.field(name)
    column = F.col(_quoted(name))
    if field is not None and field.kind == Plain("time"):
        return F.date_format(column, _OPTIONS["timestampFormat"])
    return column.cast("string")


def _quoted(name: str) -> str:
    return f"`{name.replace('`', '``')}`"
