"""What a generation of a flow has written: its output topic, as rows to compare with what is derived again."""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from headrace.client.cluster import Cluster
from headrace.flow.inputs import history
from headrace.flow.sourced import told_source
from headrace.model.progress import Batch, Generation

__all__ = ["first_written", "is_whole", "made_of", "output_ranges", "written"]

_COLUMNS = "key string, value string, partition int, offset long"


def output_ranges(generation: Generation, after: Batch | None, through: Batch) -> dict[str, tuple[int, int]]:
    """The output offsets of the batches behind ``after`` and up to ``through``, per partition."""
    # In real time there are no boundaries: rows of a batch may lie before the end of the last one.
    is_bounded = after is not None and generation.latency != "realtime"
    done = after.outputs.get(generation.output, {}) if after is not None and is_bounded else {}
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
    left = _left(cluster, generation, ranges)
    if not left:
        return spark.createDataFrame([], _COLUMNS)
    return history(spark, cluster, generation.output, left).select(*_told())


def first_written(
    spark: SparkSession, cluster: Cluster, generation: Generation, ends: Mapping[int, int]
) -> DataFrame:
    """The same of a flow in real time, up to ``ends``, with ``source_partition`` and ``source_offset``; each row once,
    in its first place. A record that the flow has not written has neither, and is there as often as it is. Two rows of
    one source that are not alike are both there.
    """
    starts = generation.output_starts
    ranges = {str(number): (starts.get(str(number), 0), end) for number, end in ends.items()}
    left = _left(cluster, generation, ranges)
    if not left:
        return spark.createDataFrame([], f"{_COLUMNS}, source_partition int, source_offset long")
    records = history(spark, cluster, generation.output, left, headers=True)
    source = told_source(F.col("headers"))
    told = records.select(
        *_told(), source["partition"].alias("source_partition"), source["offset"].alias("source_offset")
    )
    alike = ["key", "value", "partition", "source_partition", "source_offset"]
    foreign = F.when(F.col("source_offset").isNull(), F.col("offset"))
    once = told.groupBy(*alike, foreign.alias("foreign")).agg(F.min("offset").alias("offset"))
    return once.drop("foreign")


def made_of(topic: DataFrame, after: Batch | None, through: Batch) -> DataFrame:
    """Of ``first_written``, the rows of what the batches behind ``after`` and up to ``through`` have read; and all that
    has no source.
    """
    ((log, ranges),) = through.inputs.items()
    done = after.inputs.get(log, {}) if after is not None else {}
    within = F.col("source_offset").isNull()
    for number, (_, end) in ranges.items():
        begin = done[number][1] if number in done else 0
        offsets = F.col("source_offset").between(begin, end - 1)
        within = within | ((F.col("source_partition") == int(number)) & offsets)
    return topic.where(within)


def _left(
    cluster: Cluster, generation: Generation, ranges: Mapping[str, tuple[int, int]]
) -> dict[str, tuple[int, int]]:
    """What the log still has."""
    there = cluster.topic(generation.output)
    if there is None or there.id != generation.output_id:
        return {}
    starts = cluster.starts(generation.output)
    left = {n: (max(low, starts.get(int(n), 0)), high) for n, (low, high) in ranges.items()}
    return {number: bounds for number, bounds in left.items() if bounds[0] < bounds[1]}


def _told() -> list[Column]:
    texts = [F.col(name).cast("string").alias(name) for name in ("key", "value")]
    return [*texts, F.col("partition"), F.col("offset")]
