"""A flow in real time over its history: the rows of a stretch of its input, each with the record it was made of."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass

from pyspark import StorageLevel
from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as F

from headrace.client.cluster import Cluster
from headrace.flow.compiled import Compiled
from headrace.flow.decoding import TimeBounds
from headrace.flow.gone import Gone
from headrace.flow.inputs import history
from headrace.flow.plain_decoder import decode_plainly
from headrace.flow.plain_encoder import encode_plainly
from headrace.flow.row_sizes import average, measured
from headrace.flow.sourced import output_partition, sourced
from headrace.model.progress import Generation
from headrace.model.schema import Schema

__all__ = ["SourcedRows", "derive_sourced"]


@dataclass(slots=True)
class SourcedRows:
    rows: DataFrame
    """``key``, ``value``, ``source_partition``, ``source_offset``, and ``partition``, that of the output where the row
    belongs. On disk until ``close``."""
    count: int
    row_bytes: int
    """On average."""
    records: int
    dead: int
    gone: tuple[Gone, ...]
    """Of the input, what is no longer there."""

    def close(self) -> None:
        self.rows.unpersist()


def derive_sourced(
    spark: SparkSession,
    cluster: Cluster,
    compiled: Compiled,
    schemas: Mapping[str, Schema],
    generation: Generation,
    ends: Mapping[int, int],
    bounds: TimeBounds,
) -> SourcedRows:
    """All rows from the beginning of the generation up to ``ends``, per partition of its input; to be closed."""
    (known,) = generation.inputs
    topic = dataclasses.replace(compiled.flow.streams[0], schema=schemas[known.topic])
    there = cluster.topic(known.log)
    is_same = there is not None and there.id == known.topic_id
    starts = cluster.starts(known.log) if is_same else dict(ends)
    ranges, gone = {}, []
    for number, end in sorted(ends.items()):
        begin = known.starts.get(str(number), 0)
        first = min(max(begin, starts.get(number, 0)), end)
        if begin < first:
            why = "the records before were deleted" if is_same else "the topic was deleted"
            gone.append(Gone(known.log, number, first, why))
        if first < end:
            ranges[str(number)] = (first, end)
    if not ranges:
        columns = "key string, value string, source_partition int, source_offset long, partition int"
        return SourcedRows(spark.createDataFrame([], columns), 0, 0, 0, 0, tuple(gone))
    seen = Observation("read")
    decoded = decode_plainly(history(spark, cluster, known.log, ranges), topic, bounds.future_us)
    counted = decoded.observe(
        seen, F.count(F.lit(1)).alias("records"), F.count_if(F.col("reason").isNotNull()).alias("dead")
    )
    rows = sourced(counted, compiled, encode_plainly).where(F.col("key").isNotNull())
    rows = rows.withColumn("partition", output_partition(spark, F.col("key"), generation))
    count, size = measured(rows.persist(StorageLevel.DISK_ONLY))
    return SourcedRows(rows, count, average(count, size), seen.get["records"], seen.get["dead"], tuple(gone))
