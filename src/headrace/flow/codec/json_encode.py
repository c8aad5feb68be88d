"""Encodes rows as JSON values and keys in Spark expressions, in the format of ``headrace.model.codec.json_codec``."""

from __future__ import annotations

import json
from collections.abc import Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from headrace.model.kinds import Digits, Scalar
from headrace.model.schema import Schema

__all__ = ["JsonEncoder"]

_SCALE_PLAIN_MAX = 6
_OPTIONS = {
    "ignoreNullFields": "false",
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS'Z'",
    "timeZone": "UTC",
}


class JsonEncoder:
    """Implements ``headrace.flow.codec.codec.ValueEncoder``."""

    def __init__(self, schema: Schema) -> None:
        self._schema = schema

    def value(self, rows: DataFrame) -> Column:
        return F.to_json(F.struct(*(_encodable(rows, name) for name in self._schema.names)), _OPTIONS)

    def key(self, names: tuple[str, ...]) -> Column:
        """Return the text of one field, or a compact JSON object of several fields."""
        if len(names) == 1:
            return _single_key_text(self._schema, names[0])
        is_complete = F.lit(True)
        for name in names:
            is_complete = is_complete & F.col(_quoted(name)).isNotNull()
        parts = [part for name in names for part in (F.lit(","), _key_part(self._schema, name))]
        return F.when(is_complete, F.concat(F.lit("{"), *parts[1:], F.lit("}")))

    def field_text(self, value: Column, name: str) -> Column:
        return F.get_json_object(value, f"$['{name}']")

    def field_texts(self, value: Column, names: Sequence[str]) -> Column:
        return F.from_json(value, T.StructType([T.StructField(name, T.StringType()) for name in names]))


def _encodable(rows: DataFrame, name: str) -> Column:
    """Return the column, cast to a type that to_json writes in our format."""
    kind = rows.schema[name].dataType
    plain_kind = _plain_type(kind)
    column = F.col(_quoted(name))
    return column if plain_kind == kind else column.cast(plain_kind).alias(name)


def _plain_type(kind: T.DataType) -> T.DataType:
    """Replace decimal types of a high scale by the variant type. Spark's JSON writer writes small decimals with an
    exponent, but not if they are in a variant.
    """
    match kind:
        case T.DecimalType() if kind.scale > _SCALE_PLAIN_MAX:
            return T.VariantType()
        case T.ArrayType():
            return T.ArrayType(_plain_type(kind.elementType), kind.containsNull)
        case T.MapType():
            return T.MapType(kind.keyType, _plain_type(kind.valueType), kind.valueContainsNull)
        case T.StructType():
            return T.StructType(
                [
                    T.StructField(field.name, _plain_type(field.dataType), field.nullable)
                    for field in kind.fields
                ]
            )
    return kind


def _key_part(schema: Schema, name: str) -> Column:
    """Return one field of a composite key as JSON: ``"name":value``."""
    field = schema.field(name)
    if field is not None and isinstance(field.kind, Digits):
        # The cast writes all declared digits, so that each number has exactly one key.
        return F.concat(
            F.lit(f"{json.dumps(name, ensure_ascii=False)}:"), F.col(_quoted(name)).cast("string")
        )
    one_field_object = F.to_json(F.struct(F.col(_quoted(name))), _OPTIONS)
    return F.substring(one_field_object, F.lit(2), F.length(one_field_object) - 2)


def _single_key_text(schema: Schema, name: str) -> Column:
    field = schema.field(name)
    column = F.col(_quoted(name))
    if field is not None and field.kind == Scalar("time"):
        return F.date_format(column, _OPTIONS["timestampFormat"])
    return column.cast("string")


def _quoted(name: str) -> str:
    return f"`{name.replace('`', '``')}`"
