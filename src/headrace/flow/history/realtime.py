"""Derives the rows of a real-time flow again, each with its source, and computes the last row of each key.

The source of a row is the input record from which it was derived. The position of a view is not one offset. For each
pair of output partition and input partition, it is the source of the last row that the view applied. A derived row
belongs in the view if its source is not after that position. If a key has rows from several input partitions, they are
ordered by their first occurrence in the flow's topic. Only this order is from the topic; the values are derived.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from pyspark import StorageLevel
from pyspark.sql import Column, DataFrame, Observation, SparkSession
from pyspark.sql import functions as F

from headrace.client.cluster import Cluster
from headrace.flow.batch_rows import average_row_bytes, count_rows_and_bytes
from headrace.flow.codec.codec import TimeBounds
from headrace.flow.compile.compiler import Compiled
from headrace.flow.history.derived import DERIVED, UNKNOWN, RowColumns, collect_chunks
from headrace.flow.history.gaps import MissingInput
from headrace.flow.history.plain_decoder import plain_decode
from headrace.flow.history.plain_encoder import plain_encode
from headrace.flow.history.written import read_first_written
from headrace.flow.inputs import history
from headrace.flow.realtime_rows import output_partition, rows_with_source
from headrace.model.progress import Generation
from headrace.model.schema import Schema

__all__ = ["RealtimeRows", "derive_realtime", "fold_by_sources"]
_SOURCE = ["source_partition", "source_offset"]


@dataclass(slots=True)
class RealtimeRows:
    rows: DataFrame
    """``key``, ``value``, ``source_partition``, ``source_offset``, and ``partition`` of the output. Persisted on disk
    until ``close``."""
    count: int
    row_bytes: int
    """The average size of a row."""
    records: int
    dead: int
    missing: tuple[MissingInput, ...]
    """Input that no longer exists."""

    def close(self) -> None:
        self.rows.unpersist()


def derive_realtime(
    spark: SparkSession,
    cluster: Cluster,
    compiled: Compiled,
    schemas: Mapping[str, Schema],
    generation: Generation,
    ends: Mapping[int, int],
    bounds: TimeBounds,
) -> RealtimeRows:
    """Derive all rows from the start of the generation up to the input offsets ``ends``. The caller must close the
    result.
    """
    (input_source,) = generation.inputs
    topic = dataclasses.replace(compiled.flow.streams[0], schema=schemas[input_source.topic])
    current = cluster.topic(input_source.log)
    is_same = current is not None and current.id == input_source.topic_id
    starts = cluster.starts(input_source.log) if is_same else dict(ends)
    ranges, missing = {}, []
    for number, end in sorted(ends.items()):
        begin = input_source.starts.get(str(number), 0)
        first = min(max(begin, starts.get(number, 0)), end)
        if begin < first:
            reason = "the earlier records were deleted" if is_same else "the topic was deleted"
            missing.append(MissingInput(input_source.log, number, first, reason))
        if first < end:
            ranges[str(number)] = (first, end)
    if not ranges:
        columns = "key string, value string, source_partition int, source_offset long, partition int"
        return RealtimeRows(spark.createDataFrame([], columns), 0, 0, 0, 0, tuple(missing))
    observation = Observation("read")
    decoded = plain_decode(history(spark, cluster, input_source.log, ranges), topic, bounds.future_us)
    counted_records = decoded.observe(
        observation, F.count(F.lit(1)).alias("records"), F.count_if(F.col("reason").isNotNull()).alias("dead")
    )
    rows = rows_with_source(counted_records, compiled, plain_encode).where(F.col("key").isNotNull())
    rows = rows.withColumn("partition", output_partition(spark, F.col("key"), generation))
    count, size = count_rows_and_bytes(rows.persist(StorageLevel.DISK_ONLY))
    return RealtimeRows(
        rows,
        count,
        average_row_bytes(count, size),
        observation.get["records"],
        observation.get["dead"],
        tuple(missing),
    )


def fold_by_sources(
    spark: SparkSession,
    cluster: Cluster,
    generation: Generation,
    derived: RealtimeRows,
    sources: Mapping[str, int],
    offsets: Mapping[int, int],
    rejected: Collection[tuple[int, int]] = (),
) -> Iterator[RowColumns]:
    """Yield, once per key: the key, its value (None if the key should not exist) and how it is known.

    ``sources`` and ``offsets`` are the view's position. ``rejected`` has the partitions and offsets of rows that the
    view rejected.
    """
    rows = derived.rows.where(F.col("source_offset") <= _applied_source_offset(sources))
    if rejected:
        refused_offsets = spark.createDataFrame(sorted(rejected), "partition int, offset long")
        topic = read_first_written(spark, cluster, generation, offsets)
        rejected_sources = topic.join(
            F.broadcast(refused_offsets), ["partition", "offset"], "left_semi"
        ).select(*_SOURCE)
        rows = rows.join(F.broadcast(rejected_sources), _SOURCE, "left_anti")
    last = rows.groupBy("key").agg(
        F.max_by(F.struct("value"), "source_offset").alias("last"),
        F.count_distinct("source_partition").alias("partitions"),
    )
    in_one_partition = F.col("partitions") == 1
    in_order = last.where(in_one_partition).select(
        "key", F.col("last.value").alias("value"), F.lit(DERIVED).alias("known")
    )
    yield from collect_chunks(in_order, derived.count, derived.row_bytes)
    if last.where(~in_one_partition).limit(1).count():
        topic = read_first_written(spark, cluster, generation, offsets)
        yield from collect_chunks(
            _last_in_topic(last.where(~in_one_partition).select("key", "last"), rows, topic),
            derived.count,
            derived.row_bytes,
        )


def _applied_source_offset(sources: Mapping[str, int]) -> Column:
    if not sources:
        return F.lit(-1).cast("long")
    pairs = [part for pair, offset in sources.items() for part in (F.lit(pair), F.lit(offset).cast("long"))]
    pair = F.concat_ws("/", F.col("partition"), F.col("source_partition"))
    return F.coalesce(F.try_element_at(F.create_map(*pairs), pair), F.lit(-1).cast("long"))


def _last_in_topic(keys: DataFrame, rows: DataFrame, topic: DataFrame) -> DataFrame:
    """For keys with rows from several input partitions, return the derived row whose source is last in the topic."""
    written = topic.join(keys, "key", "left_semi").where(F.col("source_offset").isNotNull())
    newest = written.groupBy("key").agg(F.max_by(F.struct(*_SOURCE), "offset").alias("newest"))
    ordered = keys.join(newest, "key", "left").select("key", "last", "newest.*")
    derived = rows.select("key", *_SOURCE, "value", F.lit(True).alias("derived"))
    with_derived = ordered.join(derived, ["key", *_SOURCE], "left")
    # If the source of the topic's last row is not among the derived rows, the view is wrong. Then any derived row will
    # do: it differs from the view's row, so the comparison reports the key.
    value = F.when(F.col("derived"), F.col("value")).otherwise(F.col("last.value"))
    input_source = F.when(F.col("source_offset").isNotNull(), DERIVED).otherwise(UNKNOWN)
    return with_derived.select("key", value.alias("value"), input_source.alias("known"))
