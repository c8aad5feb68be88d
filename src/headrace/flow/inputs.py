"""The input topics of a flow as DataFrames: an endless stream, or ranges of offsets.

Each record is accepted, late or dead (``headrace.flow.lateness``). The flow's function gets only the accepted records,
with the fields of the schema.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from pyspark.sql import Column, DataFrame, Observation, SparkSession
from pyspark.sql import functions as F

from headrace.client.cluster import Cluster
from headrace.flow.lateness import Lateness, without_lateness
from headrace.flow.spark.internals import has_counts
from headrace.model.declarations import Topic

__all__ = [
    "accepted_rows",
    "client_options",
    "count_records",
    "history",
    "newest_of",
    "observed_counts",
    "stream_of",
    "with_counts",
    "with_watermark",
]

_PREFIX = "kafka."
# After each poll Spark requests the start and end offsets of the topic. With Kafka's default of 500 records per poll,
# these requests cost as much as reading the records.
_POLL_OPTIONS = {f"{_PREFIX}max.poll.records": "10000"}


def stream_of(
    spark: SparkSession, cluster: Cluster, log_topic: str, starts: Mapping[str, int], rows_max: int | None
) -> DataFrame:
    """Return the stream of records from ``starts``, or from the position in Spark's checkpoint if one exists.

    A batch reads at most ``rows_max`` records.
    """
    options = {
        **_options(cluster),
        "subscribe": log_topic,
        "startingOffsets": json.dumps({log_topic: dict(starts)}),
        "failOnDataLoss": "true",
    }
    if rows_max is not None:
        options["maxOffsetsPerTrigger"] = str(rows_max)
    return spark.readStream.format("kafka").options(**options).load()


def history(
    spark: SparkSession,
    cluster: Cluster,
    log_topic: str,
    ranges: Mapping[str, tuple[int, int]],
    *,
    headers: bool = False,
) -> DataFrame:
    """Return the committed records of each partition's range. A range includes its first number, but not its second."""
    options = {
        **_options(cluster),
        "assign": json.dumps({log_topic: [int(number) for number in ranges]}),
        "startingOffsets": json.dumps({log_topic: {number: low for number, (low, _) in ranges.items()}}),
        "endingOffsets": json.dumps({log_topic: {number: high for number, (_, high) in ranges.items()}}),
        "failOnDataLoss": "true",
        "includeHeaders": str(headers).lower(),
    }
    return spark.read.format("kafka").options(**options).load()


def _options(cluster: Cluster) -> dict[str, str]:
    return {**_POLL_OPTIONS, f"{_PREFIX}isolation.level": "read_committed", **client_options(cluster)}


def client_options(cluster: Cluster) -> dict[str, str]:
    """Return the options for any reader or writer of Spark's Kafka connector."""
    client_properties = {
        f"{_PREFIX}{name}": value
        for name, value in cluster.properties.items()
        if not name.startswith("headrace.")
    }
    return {f"{_PREFIX}bootstrap.servers": cluster.bootstrap, **client_properties}


def with_counts(decoded: DataFrame, name: str | Observation, lateness: Lateness | None) -> DataFrame:
    """Return the rows with a column ``rejected``: whether the row is late or behind. Spark counts the rows while the
    batch runs. Without ``lateness``, no row is late.

    The metrics have no records, only counts, because the driver retains the metrics of recent batches in memory.
    """
    return _with_lateness(decoded, lateness).observe(name, *_count_columns(lateness))


def count_records(decoded: DataFrame, lateness: Lateness | None) -> dict[str, Any]:
    """Compute the counts of ``with_counts`` in a separate query."""
    (row,) = _with_lateness(decoded, lateness).agg(*_count_columns(lateness)).collect()
    return row.asDict()


def observed_counts(observation: Observation) -> dict[str, Any]:
    """Return the counts. They are empty if Spark returned the rows without running the part of the plan that counts."""
    return observation.get if has_counts(observation) else {}


def _with_lateness(decoded: DataFrame, lateness: Lateness | None) -> DataFrame:
    marked = without_lateness(decoded) if lateness is None else lateness.add_columns(decoded)
    partition, event_us = F.col("partition"), F.col("event_us")
    # As separate columns, these are computed in generated code. Inside the counting expressions, Spark would
    # interpret them row by row.
    return marked.select(
        "row",
        "event_us",
        "late",
        (F.col("late") | F.col("behind")).alias("rejected"),
        (F.col("reason").isNotNull() | F.col("behind")).alias("dead"),
        F.length("value").alias("bytes"),
        "partition",
        "offset",
        *(
            F.when(partition == number, event_us).alias(f"{_NEWEST}{number}")
            for number in _counted_partitions(lateness)
        ),
    )


_NEWEST = "newest_us_"


def _counted_partitions(lateness: Lateness | None) -> range:
    """Return the partitions whose newest event times are counted. For a single partition, ``seen_us`` is enough."""
    return range(0 if lateness is None or lateness.partitions == 1 else lateness.partitions)


def _count_columns(lateness: Lateness | None) -> list[Column]:
    return [
        F.count(F.lit(1)).alias("rows"),
        F.max("event_us").alias("seen_us"),
        F.count_if("late").alias("late"),
        F.count_if("dead").alias("dead"),
        F.sum("bytes").alias("bytes"),
        *(
            F.max(f"{_NEWEST}{number}").alias(f"{_NEWEST}{number}")
            for number in _counted_partitions(lateness)
        ),
    ]


def newest_of(counts: Mapping[str, Any], lateness: Lateness | None) -> dict[int, int]:
    """Return the newest event time of each partition in the counts, without partitions that had no event."""
    if lateness is None:
        return {}
    if lateness.partitions == 1:
        return {} if counts.get("seen_us") is None else {0: counts["seen_us"]}
    times = {number: counts.get(f"{_NEWEST}{number}") for number in _counted_partitions(lateness)}
    return {number: time_us for number, time_us in times.items() if time_us is not None}


def accepted_rows(
    counted: DataFrame, topic: Topic, *, has_watermark: bool, extra_columns: Sequence[Column] = ()
) -> DataFrame:
    """Return the rows that are passed to the function, with the ``extra_columns``."""
    rows = counted.where(F.col("row").isNotNull() & ~F.col("rejected")).select("row.*", *extra_columns)
    return with_watermark(rows, topic) if has_watermark else rows


def with_watermark(rows: DataFrame, topic: Topic) -> DataFrame:
    """Mark the event time for Spark. The flow sets Spark's watermark itself (``SparkWatermark``)."""
    policy = topic.late_policy
    if policy is None:
        return rows
    return rows.withWatermark(policy.time, f"{-(-policy.allowed_us // 1000) + 1} milliseconds")
