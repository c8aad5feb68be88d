"""From the rows that a function returns to keys and values of its topic.

A row with a true ``_deleted`` becomes a null value: it deletes its key in every table and view that follows. A row
without a key has nowhere to go, and is left to the caller, who has a place for it.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from headrace.model.kinds import Plain
from headrace.model.schema import Schema

__all__ = ["DELETED", "encode", "key_column"]

DELETED = "_deleted"
_OPTIONS = {
    "ignoreNullFields": "false",
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS'Z'",
    "timeZone": "UTC",
}


def encode(rows: DataFrame, schema: Schema, key: tuple[str, ...]) -> DataFrame:
    """Columns ``key`` (null where a field of it is) and ``value`` (null deletes)."""
    value = F.to_json(F.struct(*(F.col(_quoted(name)) for name in schema.names)), _OPTIONS)
    if DELETED in rows.columns:
        value = F.when(~F.coalesce(F.col(DELETED), F.lit(False)), value)
    return rows.select(key_column(schema, key).alias("key"), value.alias("value"))


def key_column(schema: Schema, key: tuple[str, ...]) -> Column:
    if len(key) == 1:
        return _text(schema, key[0])
    all_there = F.lit(True)
    for name in key:
        all_there = all_there & F.col(_quoted(name)).isNotNull()
    return F.when(all_there, F.to_json(F.struct(*(F.col(_quoted(name)) for name in key)), _OPTIONS))


def _text(schema: Schema, name: str) -> Column:
    field = schema.field(name)
    column = F.col(_quoted(name))
    if field is not None and field.kind == Plain("time"):
        return F.date_format(column, _OPTIONS["timestampFormat"])
    return column.cast("string")


def _quoted(name: str) -> str:
    return f"`{name.replace('`', '``')}`"
