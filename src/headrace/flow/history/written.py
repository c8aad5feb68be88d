"""Reads the output topic of a generation, to compare its rows with the derived rows."""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from headrace.client.cluster import Cluster
from headrace.flow.inputs import history
from headrace.flow.realtime_rows import header_source
from headrace.model.progress import Batch, Generation

__all__ = ["from_batches", "is_whole", "output_ranges", "read_first_written", "read_written"]

_COLUMNS = "key string, value string, partition int, offset long"


def output_ranges(generation: Generation, after: Batch | None, through: Batch) -> dict[str, tuple[int, int]]:
    """Return the output offsets of the batches after ``after`` up to ``through``, by partition.

    If the generation continued in another topic, that topic begins with a copy of the earlier rows.
    """
    if generation.continues >= 0:
        starts = dict.fromkeys(generation.output_starts, 0)
        if after is not None:
            starts |= {number: end for number, (_, end) in after.outputs.get(generation.output, {}).items()}
        copied = {number: (0, end) for number, end in generation.output_starts.items()}
        ranges = through.outputs.get(generation.output, copied)
        return {number: (starts.get(number, 0), end) for number, (_, end) in ranges.items()}
    # Batches of a real-time flow overlap: rows of a batch can be before the end of the previous batch.
    is_bounded = after is not None and generation.latency != "realtime"
    ranges_before = after.outputs.get(generation.output, {}) if after is not None and is_bounded else {}
    ranges_by_partition = {}
    for number, (_, end) in through.outputs.get(generation.output, {}).items():
        begin = (
            ranges_before[number][1] if number in ranges_before else generation.output_starts.get(number, 0)
        )
        ranges_by_partition[number] = (begin, end)
    return ranges_by_partition


def is_whole(cluster: Cluster, generation: Generation, ranges: Mapping[str, tuple[int, int]]) -> bool:
    """Whether the topic still has every record in the ranges. False if the topic was replaced, or if it is
    compacted, because compaction may have removed records.
    """
    topic = cluster.topic(generation.output)
    if topic is None or topic.id != generation.output_id:
        return False
    if "compact" in (cluster.configs(generation.output).get("cleanup.policy") or ""):
        return False
    starts = cluster.starts(generation.output)
    return all(low >= high or starts.get(int(number), 0) <= low for number, (low, high) in ranges.items())


def read_written(
    spark: SparkSession, cluster: Cluster, generation: Generation, ranges: Mapping[str, tuple[int, int]]
) -> DataFrame:
    """Return ``key`` and ``value`` as text, ``partition`` and ``offset`` of the records that still exist."""
    existing = _existing_ranges(cluster, generation, ranges)
    if not existing:
        return spark.createDataFrame([], _COLUMNS)
    return history(spark, cluster, generation.output, existing).select(*_columns())


def read_first_written(
    spark: SparkSession, cluster: Cluster, generation: Generation, ends: Mapping[int, int]
) -> DataFrame:
    """Same as ``read_written``, for a real-time flow, up to ``ends``, with ``source_partition`` and ``source_offset``.

    A repeated row is returned once, with its first offset. Two different rows of one source are both returned. Records
    that the flow did not write have no source; all of them are returned.
    """
    starts = generation.output_starts
    ranges = {str(number): (starts.get(str(number), 0), end) for number, end in ends.items()}
    existing = _existing_ranges(cluster, generation, ranges)
    if not existing:
        return spark.createDataFrame([], f"{_COLUMNS}, source_partition int, source_offset long")
    records = history(spark, cluster, generation.output, existing, headers=True)
    source = header_source(F.col("headers"))
    rows = records.select(
        *_columns(), source["partition"].alias("source_partition"), source["offset"].alias("source_offset")
    )
    row_columns = ["key", "value", "partition", "source_partition", "source_offset"]
    without_source = F.when(F.col("source_offset").isNull(), F.col("offset"))
    unique_rows = rows.groupBy(*row_columns, without_source.alias("foreign")).agg(
        F.min("offset").alias("offset")
    )
    return unique_rows.drop("foreign")


def from_batches(topic: DataFrame, after: Batch | None, through: Batch) -> DataFrame:
    """Return the rows of ``read_first_written`` whose source is in the batches after ``after`` up to ``through``, and
    all records without a source.
    """
    ((log, ranges),) = through.inputs.items()
    ranges_before = after.inputs.get(log, {}) if after is not None else {}
    within = F.col("source_offset").isNull()
    for number, (_, end) in ranges.items():
        begin = ranges_before[number][1] if number in ranges_before else 0
        offsets = F.col("source_offset").between(begin, end - 1)
        within = within | ((F.col("source_partition") == int(number)) & offsets)
    return topic.where(within)


def _existing_ranges(
    cluster: Cluster, generation: Generation, ranges: Mapping[str, tuple[int, int]]
) -> dict[str, tuple[int, int]]:
    """Return the part of the ranges that still exists in the log."""
    topic = cluster.topic(generation.output)
    if topic is None or topic.id != generation.output_id:
        return {}
    starts = cluster.starts(generation.output)
    existing = {n: (max(low, starts.get(int(n), 0)), high) for n, (low, high) in ranges.items()}
    return {number: bounds for number, bounds in existing.items() if bounds[0] < bounds[1]}


def _columns() -> list[Column]:
    texts = [F.col(name).cast("string").alias(name) for name in ("key", "value")]
    return [*texts, F.col("partition"), F.col("offset")]
