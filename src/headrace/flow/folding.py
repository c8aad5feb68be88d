"""Derived rows folded by key: which one counts where a key has several.

What is derived in one go has no order, and the last row of a key is the one that counts. Where a key has one row only
(an event's own key, a group of an aggregation), that is it. Where it has several, the flow's topic is asked, which has
them in the order in which the flow wrote them: its last row of that key must be one of those that were derived. So
which of the derived rows is the last one is the log's word; that it was derived is not.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from typing import Any

from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from headrace.client.cluster import Cluster
from headrace.flow.compiled import Compiled
from headrace.flow.derived import Derived
from headrace.flow.written import is_whole, output_ranges, written
from headrace.model.progress import Generation

__all__ = [
    "BY_TOPIC",
    "DERIVED",
    "UNKNOWN",
    "Some",
    "bag",
    "collected",
    "folded",
    "is_bag_provable",
    "last_written",
]

DERIVED, BY_TOPIC, UNKNOWN = 0, 1, 2
"""How a row is known: it was derived; or only the topic tells it; or nothing does."""
_ROWS_AT_ONCE = 1_000_000
_PLACE = "partition int, offset long"
Some = Sequence[list[Any]]
"""Columns of some rows."""


def folded(
    spark: SparkSession,
    cluster: Cluster,
    compiled: Compiled,
    generation: Generation,
    derived: Derived,
    refused: Collection[tuple[int, int]] = (),
) -> Iterator[Some]:
    """Key, value (None for a key that should not be there) and how it is known, for each key once.

    ``refused`` are places in the topic of rows that were not taken, and so count for nothing.
    """
    unsure = compiled.stateful and (derived.operators.holds_back or derived.operators.deduplicates)
    several = 0
    if not unsure and not refused:
        for keys, values, ones in collected(_by_key(derived.rows), derived.count):
            sure = [(key, value) for key, value, one in zip(keys, values, ones, strict=True) if one]
            several += len(keys) - len(sure)
            yield [key for key, _ in sure], [value for _, value in sure], [DERIVED] * len(sure)
        if not several:
            return
    asked = _asked(spark, cluster, compiled, generation, derived, refused, unsure=unsure)
    yield from collected(asked, derived.count)


def _by_key(rows: DataFrame) -> DataFrame:
    """Each key with its value, and whether that is the only one."""
    value = F.col("value")
    keys = rows.groupBy("key").agg(
        F.min(value).alias("low"),
        F.max(value).alias("high"),
        F.count_if(value.isNull()).alias("deletions"),
        F.count(F.lit(1)).alias("rows"),
    )
    alike = (F.col("deletions") == 0) & (F.col("low") == F.col("high"))
    one = alike | (F.col("deletions") == F.col("rows"))
    return keys.select("key", F.col("high").alias("value"), one.alias("one"))


def _asked(
    spark: SparkSession,
    cluster: Cluster,
    compiled: Compiled,
    generation: Generation,
    derived: Derived,
    refused: Collection[tuple[int, int]],
    *,
    unsure: bool,
) -> DataFrame:
    """The same of keys with several values; of all keys where rows were refused or the order decides (``unsure``)."""
    ranges = output_ranges(generation, derived.after, derived.through)
    topic = written(spark, cluster, generation, ranges)
    keys = _by_key(derived.rows).withColumn("refused", F.lit(None).cast("boolean"))
    if refused:
        places = F.broadcast(spark.createDataFrame(sorted(refused), _PLACE))
        among = topic.join(places, ["partition", "offset"], "left_semi").select("key").distinct()
        keys = keys.drop("refused").join(F.broadcast(among.withColumn("refused", F.lit(True))), "key", "left")
        topic = topic.join(places, ["partition", "offset"], "left_anti")
    last = last_written(topic).withColumnRenamed("value", "told").withColumn("there", F.lit(True))
    rows = derived.rows.distinct().select(
        F.col("key").alias("derived_key"), F.col("value").alias("derived_value"), F.lit(True).alias("derived")
    )
    ask = ~F.col("one") | F.col("refused").isNotNull() | F.lit(unsure)
    held = keys.where(ask).join(last, "key", "left")
    held = held.join(
        rows,
        (F.col("derived_key") == F.col("key")) & F.col("derived_value").eqNullSafe(F.col("told")),
        "left",
    )
    holds_back = unsure and derived.operators.holds_back
    whole = is_whole(cluster, generation, ranges)
    decided = _decided(held, whole=whole, holds_back=holds_back, unsure=unsure)
    if not refused or unsure:
        return decided
    sure = keys.where(~ask).select("key", "value", F.lit(DERIVED).alias("known"))
    return sure.unionByName(decided)


def _decided(held: DataFrame, *, whole: bool, holds_back: bool, unsure: bool) -> DataFrame:
    """``told`` is the topic's last row of the key, if it is ``there``; ``derived`` whether that is one of those."""
    there, derived = F.col("there").isNotNull(), F.col("derived").isNotNull()
    refused = F.col("refused").isNotNull() & F.lit(whole)
    by_topic = there & (derived | F.lit(unsure))
    # A row that the topic lacks may be held back, or was compacted away; else it should be there.
    lacking = UNKNOWN if holds_back or not whole else DERIVED
    known = (
        F.when(there & (derived | F.lit(not unsure)), DERIVED).when(there, BY_TOPIC).when(refused, DERIVED)
    )
    nothing = F.lit(None).cast("string")
    value = F.when(by_topic, F.col("told")).when(~there & refused, nothing).otherwise(F.col("value"))
    return held.select("key", value.alias("value"), known.otherwise(lacking).alias("known"))


def last_written(topic: DataFrame) -> DataFrame:
    """The topic folded by key: the value (null for a deletion) of its highest offset. A key is in one partition."""
    last = F.max_by(F.struct("value"), "offset")
    return topic.groupBy("key").agg(last.alias("last")).select("key", F.col("last.value").alias("value"))


def bag(rows: DataFrame) -> DataFrame:
    """How often each row is there: ``key``, ``value`` (``null`` for a deletion), ``times``."""
    text = F.coalesce("value", F.lit("null")).alias("value")
    return rows.select("key", text).groupBy("key", "value").agg(F.count(F.lit(1)).alias("times"))


def is_bag_provable(compiled: Compiled, derived: Derived, *, whole: bool) -> bool:
    """Whether the topic should hold every derived row, once: not if rows of a key replace each other as they change."""
    operators = derived.operators
    loose = compiled.stateful and (operators.holds_back or operators.deduplicates)
    return whole and compiled.mode == "append" and not loose


def collected(frame: DataFrame, rows_max: int) -> Iterator[Some]:
    """The columns of all rows, some rows at a time. ``rows_max`` is at least how many there are."""
    shares = max(1, math.ceil(rows_max / _ROWS_AT_ONCE))
    if shares == 1:
        yield _columns(frame)
        return
    frame = frame.persist(StorageLevel.DISK_ONLY)
    try:
        for share in range(shares):
            yield _columns(frame.where(F.pmod(F.xxhash64("key"), F.lit(shares)) == share))
    finally:
        frame.unpersist()


def _columns(frame: DataFrame) -> Some:
    return [column.to_pylist() for column in frame.toArrow().columns]
