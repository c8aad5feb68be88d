"""Derived rows in the order in which the flow writes them, and folded by key: which one counts where a key has several.

Each derived row has the batch that writes it and its coordinates (``headrace.flow.lineage``), so the last row of a key
is the greatest by these. The flow's topic is not asked for it.

Two things are not in the coordinates: when a row is written that an outer join of two streams has held back, and which
rows ``dropDuplicatesWithinWatermark`` has forgotten. Of such flows the topic's last row of a key counts if it is one of
those that were derived; one that was not is known by the topic only. So it is with keys of which a view has refused a
row, since what was refused is a place in the topic.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from typing import Any

from pyspark import StorageLevel
from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F
from pyspark.sql import types as T

from headrace.client.cluster import Cluster
from headrace.flow.compiled import Compiled
from headrace.flow.derived import Derived
from headrace.flow.plain_encoder import spell_plainly
from headrace.flow.sourced import output_partition
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
    "folded_by_fields",
    "has_its_partitions",
    "is_bag_provable",
    "is_order_derivable",
    "is_order_open",
    "last_written",
    "numbered",
    "numbered_written",
]

DERIVED, BY_TOPIC, UNKNOWN = 0, 1, 2
"""How a row is known: it was derived; or only the topic tells it; or nothing does."""
_ROWS_AT_ONCE = 1_000_000
_BYTES_AT_ONCE = 64 << 20
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
    if refused or is_order_open(compiled, derived):
        asked = _asked(spark, cluster, compiled, generation, derived, refused)
        yield from collected(asked, derived.count, derived.row_bytes)
        return
    known = F.lit(DERIVED).alias("known")
    yield from collected(
        _last_derived(derived).select("key", "value", known), derived.count, derived.row_bytes
    )


def is_order_open(compiled: Compiled, derived: Derived) -> bool:
    """Whether coordinates do not tell which rows are written, and when."""
    operators = derived.operators
    return compiled.stateful and (operators.holds_back or operators.forgets_duplicates)


def _last_derived(derived: Derived) -> DataFrame:
    """Each key with its last value. Rows without coordinates are those of groups, one for each key."""
    order = derived.order
    last = F.max_by(F.struct("value"), F.struct(*order)) if order else F.max(F.struct("value"))
    keys = derived.rows.groupBy("key").agg(last.alias("last"))
    return keys.select("key", F.col("last.value").alias("value"))


def is_order_derivable(compiled: Compiled, generation: Generation, derived: Derived) -> bool:
    """Whether coordinates tell the order of all rows, and not only of those of a key."""
    if not derived.order or compiled.mode != "append" or is_order_open(compiled, derived):
        return False
    return has_its_partitions(generation, derived)


def has_its_partitions(generation: Generation, derived: Derived) -> bool:
    """Whether the topic has as many as when the generation began. Where some were added, a key has rows in two."""
    return derived.through.outputs.get(generation.output, {}).keys() <= generation.output_starts.keys()


def folded_by_fields(
    spark: SparkSession, generation: Generation, derived: Derived, names: Sequence[str]
) -> Iterator[Some]:
    """The same by other fields than the topic's key. A view takes a batch partition by partition, so of a batch the
    row of the highest partition counts. A deletion names the key of the topic only, and is no row of such a view.
    """
    batch, *order = derived.order
    partition = output_partition(spark, F.col("key"), generation)
    fields = T.StructType([T.StructField(name, T.StringType()) for name in names])
    by = F.from_json("value", fields)
    last = F.max_by(F.struct("key", "value"), F.struct(batch, partition.alias("partition"), *order))
    rows = derived.rows.where(F.col("value").isNotNull()).groupBy(by.alias("by")).agg(last.alias("last"))
    yield from collected(
        rows.select("last.*", F.lit(DERIVED).alias("known")), derived.count, derived.row_bytes
    )


def numbered(derived: Derived) -> DataFrame:
    """``key``, ``value`` (``null`` for a deletion), ``nth``: the number of the row among those of its key."""
    return _numbered(derived.rows, derived.order)


def numbered_written(topic: DataFrame, partition: Column) -> DataFrame:
    """The same for the rows of the topic. ``partition`` is where the key belongs. A row in another partition gets a
    negative number, because consumers would read the rows of its key in any order.
    """
    rows = _numbered(topic, ["offset"], beside=[(F.col("partition") == partition).alias("in_partition")])
    nth = F.when(F.col("in_partition"), F.col("nth")).otherwise(-F.col("nth"))
    return rows.select("key", "value", nth.alias("nth"))


def _numbered(rows: DataFrame, order: Sequence[str], beside: Sequence[Column] = ()) -> DataFrame:
    by_key = Window.partitionBy("key").orderBy(*order)
    text = F.coalesce("value", F.lit("null")).alias("value")
    return rows.select("key", text, F.row_number().over(by_key).alias("nth"), *beside)


def _asked(
    spark: SparkSession,
    cluster: Cluster,
    compiled: Compiled,
    generation: Generation,
    derived: Derived,
    refused: Collection[tuple[int, int]],
) -> DataFrame:
    """The topic is asked about keys of which rows were refused; about all where the order is open."""
    unsure = is_order_open(compiled, derived)
    ranges = output_ranges(generation, derived.after, derived.through)
    topic = spell_plainly(written(spark, cluster, generation, ranges), compiled.schema)
    keys = _last_derived(derived).withColumn("refused", F.lit(None).cast("boolean"))
    if refused:
        places = F.broadcast(spark.createDataFrame(sorted(refused), _PLACE))
        among = topic.join(places, ["partition", "offset"], "left_semi").select("key").distinct()
        keys = keys.drop("refused").join(F.broadcast(among.withColumn("refused", F.lit(True))), "key", "left")
        topic = topic.join(places, ["partition", "offset"], "left_anti")
    last = last_written(topic).withColumnRenamed("value", "told").withColumn("there", F.lit(True))
    rows = derived.rows.select(
        F.col("key").alias("derived_key"), F.col("value").alias("derived_value"), F.lit(True).alias("derived")
    ).distinct()
    ask = F.col("refused").isNotNull() | F.lit(unsure)
    held = keys.where(ask).join(last, "key", "left")
    held = held.join(
        rows,
        (F.col("derived_key") == F.col("key")) & F.col("derived_value").eqNullSafe(F.col("told")),
        "left",
    )
    holds_back = unsure and derived.operators.holds_back
    whole = is_whole(cluster, generation, ranges)
    decided = _decided(held, whole=whole, holds_back=holds_back, unsure=unsure)
    if unsure:
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
    return whole and compiled.mode == "append" and not is_order_open(compiled, derived)


def collected(frame: DataFrame, rows_max: int, row_bytes: int) -> Iterator[Some]:
    """The columns of all rows, some at a time. There are no more than ``rows_max``, each of about ``row_bytes``."""
    shares = max(1, math.ceil(rows_max * max(row_bytes / _BYTES_AT_ONCE, 1 / _ROWS_AT_ONCE)))
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
