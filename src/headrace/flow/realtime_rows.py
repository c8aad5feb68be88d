"""The rows of a real-time flow, each with its source: the input record from which it was derived.

This module, not the producer, computes the partition of a row. It uses the formula of Kafka's clients, but always with
the number of partitions that the topic had when the generation began. So all rows of a key remain in one partition, in
order, even if partitions are added.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from headrace.flow.codec.codec import encode
from headrace.flow.compile.compiler import Compiled
from headrace.flow.compile.lineage import coordinates, lineage_columns, trace
from headrace.flow.spark.internals import kafka_hash
from headrace.model.progress import SOURCE_HEADER, Generation
from headrace.model.schema import Schema

__all__ = ["header_source", "output_partition", "rows_with_source", "source_header"]

_NOT_NEGATIVE = 0x7FFF_FFFF
Encode = Callable[[DataFrame, Schema, tuple[str, ...], Sequence[str]], DataFrame]
"""Encodes rows as keys and values. The last argument names further columns to return."""


def rows_with_source(decoded: DataFrame, compiled: Compiled, encode_rows: Encode = encode) -> DataFrame:
    """Return the columns ``key`` (null if the row has no key), ``value``, ``source_partition``, ``source_offset``.

    ``decoded`` has the columns that ``Decoder.decode`` returns.
    """
    rows = decoded.where(F.col("row").isNotNull()).select("row.*", *coordinates(0))
    derived = trace(compiled.flow, [rows])
    # A real-time flow has one input, number 0, and derives at most one row from each record.
    partition, offset = lineage_columns(derived)
    encoded = encode_rows(derived, compiled.schema, compiled.flow.writes.key, [partition, offset])
    return encoded.select(
        "key",
        "value",
        F.col(partition).cast("int").alias("source_partition"),
        F.col(offset).alias("source_offset"),
    )


def source_header() -> Column:
    """Return the headers of a row in the format of Spark's Kafka sink."""
    source = F.concat_ws("/", F.col("source_partition"), F.col("source_offset")).cast("binary")
    return F.array(F.struct(F.lit(SOURCE_HEADER).alias("key"), source.alias("value")))


def header_source(headers: Column) -> Column:
    """Parse partition and offset from the headers of Spark's Kafka source; null if the record has no source header."""
    source_text = F.get(F.filter(headers, lambda header: header["key"] == SOURCE_HEADER), F.lit(0))[
        "value"
    ].cast("string")
    parts = F.when(source_text.rlike(r"\A[0-9]{1,9}/[0-9]{1,18}\z"), F.split(source_text, "/"))
    return F.struct(
        F.get(parts, F.lit(0)).cast("int").alias("partition"),
        F.get(parts, F.lit(1)).cast("long").alias("offset"),
    )


def output_partition(spark: SparkSession, key: Column, generation: Generation) -> Column:
    number = kafka_hash(spark, key).bitwiseAND(_NOT_NEGATIVE)
    return number % len(generation.output_starts)
