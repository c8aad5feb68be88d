"""What a generation of a flow has written: its output topic, as rows to compare with what is derived again."""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from headrace.client.cluster import Cluster
from headrace.flow.inputs import history
from headrace.model.progress import Batch, Generation

__all__ = ["is_whole", "output_ranges", "written"]


def output_ranges(generation: Generation, after: Batch | None, through: Batch) -> dict[str, tuple[int, int]]:
    """The output offsets of the batches behind ``after`` and up to ``through``, per partition."""
    done = after.outputs.get(generation.output, {}) if after is not None else {}
    found = {}
    for number, (_, end) in through.outputs.get(generation.output, {}).items():
        begin = done[number][1] if number in done else generation.output_starts.get(number, 0)
        found[number] = (begin, end)
    return found


def is_whole(cluster: Cluster, generation: Generation, ranges: Mapping[str, tuple[int, int]]) -> bool:
    """Whether the topic is the one that was written, and nothing of the ranges was deleted or compacted away."""
    there = cluster.topic(generation.output)
    if there is None or there.id != generation.output_id:
        return False
    if "compact" in (cluster.configs(generation.output).get("cleanup.policy") or ""):
        return False
    starts = cluster.starts(generation.output)
    return all(low >= high or starts.get(int(number), 0) <= low for number, (low, high) in ranges.items())


def written(
    spark: SparkSession, cluster: Cluster, generation: Generation, ranges: Mapping[str, tuple[int, int]]
) -> DataFrame:
    """``key`` and ``value`` as text, ``partition``, ``offset``; what is no longer there is left out."""
    empty = spark.createDataFrame([], "key string, value string, partition int, offset long")
    there = cluster.topic(generation.output)
    if there is None or there.id != generation.output_id:
        return empty
    starts = cluster.starts(generation.output)
    left = {n: (max(low, starts.get(int(n), 0)), high) for n, (low, high) in ranges.items()}
    left = {number: bounds for number, bounds in left.items() if bounds[0] < bounds[1]}
    if not left:
        return empty
    return history(spark, cluster, generation.output, left).select(
        F.col("key").cast("string").alias("key"),
        F.col("value").cast("string").alias("value"),
        "partition",
        "offset",
    )
