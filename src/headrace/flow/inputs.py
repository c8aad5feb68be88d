"""A flow's input topics as DataFrames: the live stream, or a stretch of history.

Either way every record is decoded by the same rules, and falls into one of three: it is counted, it is late, or it is
dead. The function sees the counted ones, with the fields of the schema and nothing else.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from pyspark.sql import Column, DataFrame, Observation, SparkSession
from pyspark.sql import functions as F

from headrace.client.cluster import Cluster
from headrace.flow.watermark import spark_delay
from headrace.model.topic import Topic

__all__ = ["client_options", "counted", "counts_of", "history", "is_late", "live", "observed", "tallied"]

_PREFIX = "kafka."
# At the default of 500 records a poll, asking the log where the topic begins and ends, as Spark does after each, costs
# as much as the records.
_AT_ONCE = {f"{_PREFIX}max.poll.records": "10000"}


def live(
    spark: SparkSession, cluster: Cluster, log_topic: str, starts: Mapping[str, int], rows: int | None
) -> DataFrame:
    """Committed records from ``starts`` on, where Spark's checkpoint does not know better; of ``rows`` at most in a
    batch, or without a limit.
    """
    options = {
        **_options(cluster),
        "subscribe": log_topic,
        "startingOffsets": json.dumps({log_topic: dict(starts)}),
        "failOnDataLoss": "true",
    }
    if rows is not None:
        options["maxOffsetsPerTrigger"] = str(rows)
    return spark.readStream.format("kafka").options(**options).load()


def history(
    spark: SparkSession,
    cluster: Cluster,
    log_topic: str,
    ranges: Mapping[str, tuple[int, int]],
    *,
    headers: bool = False,
) -> DataFrame:
    """Committed records of each partition, from (inclusive) and to (exclusive)."""
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
    return {**_AT_ONCE, f"{_PREFIX}isolation.level": "read_committed", **client_options(cluster)}


def client_options(cluster: Cluster) -> dict[str, str]:
    """For any client of Spark's connector."""
    passed = {
        f"{_PREFIX}{name}": value
        for name, value in cluster.properties.items()
        if not name.startswith("headrace.")
    }
    return {f"{_PREFIX}bootstrap.servers": cluster.bootstrap, **passed}


def observed(decoded: DataFrame, name: str | Observation, watermark: Column) -> DataFrame:
    """The same rows with a column ``late``, counted on their way; the counts are there when the batch has run.

    Counts only: Spark keeps them in the driver, and again for each of its last batches.
    """
    return _judged(decoded, watermark).observe(name, *_tallies())


def tallied(decoded: DataFrame, watermark: Column) -> dict[str, Any]:
    """What ``observed`` counts, read for that alone."""
    (row,) = _judged(decoded, watermark).agg(*_tallies()).collect()
    return row.asDict()


def counts_of(observation: Observation) -> dict[str, Any]:
    """Nothing if Spark found the rows out without a plan for what was to be counted."""
    row: Any = observation._jo.getRow()  # type: ignore[union-attr]
    return observation.get if row.length() else {}


def _judged(decoded: DataFrame, watermark: Column) -> DataFrame:
    judged = decoded.withColumn("late", is_late(watermark))
    # Computed before they are counted, in the code of the plan: what is counted is interpreted, row by row.
    return judged.select(
        "row",
        "event_us",
        "late",
        F.col("reason").isNotNull().alias("dead"),
        F.length("value").alias("bytes"),
        "partition",
        "offset",
    )


def is_late(watermark: Column) -> Column:
    return F.coalesce(F.col("event_us") < watermark, F.lit(False))


def _tallies() -> list[Column]:
    return [
        F.count(F.lit(1)).alias("rows"),
        F.max("event_us").alias("seen_us"),
        F.count_if("late").alias("late"),
        F.count_if("dead").alias("dead"),
        F.sum("bytes").alias("bytes"),
    ]


def counted(
    decoded: DataFrame, topic: Topic, late: Column, *, streaming: bool, beside: Sequence[Column] = ()
) -> DataFrame:
    """What the function sees, and the columns that go along beside it."""
    rows = decoded.where(F.col("row").isNotNull() & ~late).select("row.*", *beside)
    if streaming and topic.time:
        return rows.withWatermark(topic.time, spark_delay(topic))
    return rows
