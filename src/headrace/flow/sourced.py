"""The rows of a flow, each with the record that it was made of: over the live stream, and over history.

Which partition of the output a row belongs to is decided here and not by the producer: as Kafka's clients decide it,
with the number of partitions that the generation began with. So all rows of a key stay in one partition, in their
order, also when partitions are added.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from headrace.flow.carrying import SOURCE, carried
from headrace.flow.compiled import Compiled
from headrace.flow.encoding import encode
from headrace.model.progress import Generation
from headrace.model.schema import Schema
from headrace.model.source import HEADER

__all__ = ["as_header", "output_partition", "sourced", "told_source"]

_NOT_NEGATIVE = 0x7FFF_FFFF
Encode = Callable[[DataFrame, Schema, tuple[str, ...], Sequence[str]], DataFrame]
"""From rows to keys and values, with the columns that are named last beside them."""


def sourced(decoded: DataFrame, compiled: Compiled, encode_rows: Encode = encode) -> DataFrame:
    """Columns ``key`` (null for a row without one), ``value``, ``source_partition``, ``source_offset``; ``decoded`` is
    what ``headrace.flow.decoding`` gives.
    """
    place = F.struct(F.col("partition"), F.col("offset")).alias(SOURCE)
    rows = decoded.where(F.col("row").isNotNull()).select("row.*", place)
    made = carried(compiled.flow, rows, compiled.flow.function)
    source = F.col(SOURCE)
    return encode_rows(made, compiled.schema, compiled.flow.writes.key, [SOURCE]).select(
        "key", "value", source["partition"].alias("source_partition"), source["offset"].alias("source_offset")
    )


def as_header() -> Column:
    """The headers of a row as Kafka's sink takes them."""
    told = F.concat_ws("/", F.col("source_partition"), F.col("source_offset")).cast("binary")
    return F.array(F.struct(F.lit(HEADER).alias("key"), told.alias("value")))


def told_source(headers: Column) -> Column:
    """Back again, as Kafka's source gives headers: partition and offset, null for a record without them."""
    mine = F.get(F.filter(headers, lambda one: one["key"] == HEADER), F.lit(0))["value"].cast("string")
    parts = F.when(mine.rlike(r"\A[0-9]{1,9}/[0-9]{1,18}\z"), F.split(mine, "/"))
    return F.struct(
        F.get(parts, F.lit(0)).cast("int").alias("partition"),
        F.get(parts, F.lit(1)).cast("long").alias("offset"),
    )


def output_partition(spark: SparkSession, key: Column, generation: Generation) -> Column:
    jvm: Any = spark._jvm
    expressions: Any = jvm.org.apache.spark.sql.classic.ExpressionUtils
    to_seq = jvm.org.apache.spark.api.python.PythonUtils.toSeq
    utilities = jvm.java.lang.Class.forName(
        "org.apache.kafka.common.utils.Utils",
        True,
        jvm.java.lang.Thread.currentThread().getContextClassLoader(),
    )
    arguments = jvm.java.util.ArrayList()
    arguments.add(expressions.expression(F.encode(key, "UTF-8")._jc))
    hashed = jvm.org.apache.spark.sql.catalyst.expressions.objects.StaticInvoke(
        utilities,
        jvm.org.apache.spark.sql.types.DataTypes.IntegerType,
        "murmur2",
        to_seq(arguments),
        to_seq(jvm.java.util.ArrayList()),
        True,
        True,
        True,
        jvm.scala.Option.empty(),
    )
    number = Column(expressions.column(hashed)).bitwiseAND(_NOT_NEGATIVE)
    return number % len(generation.output_starts)
