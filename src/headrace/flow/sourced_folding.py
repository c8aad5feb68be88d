"""Rows of a flow in real time, folded by key as a view must have them that reaches so far.

How far a view reaches is not one place: for each partition of the output and each of the input it is the source of the
last row that was applied. A derived row belongs into the view if it is not beyond that. Of the rows of a key that come
from one partition of the input the one with the highest offset counts, since they are written in that order. Where they
come from several, the flow's topic has the order in which they came first; that each of them was derived is not its
word.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from headrace.client.cluster import Cluster
from headrace.flow.folding import DERIVED, UNKNOWN, Some, collected
from headrace.flow.sourced_history import SourcedRows
from headrace.flow.written import first_written
from headrace.model.progress import Generation

__all__ = ["folded_by_sources"]

_SOURCE = ["source_partition", "source_offset"]


def folded_by_sources(
    spark: SparkSession,
    cluster: Cluster,
    generation: Generation,
    derived: SourcedRows,
    sources: Mapping[str, int],
    offsets: Mapping[int, int],
    refused: Collection[tuple[int, int]] = (),
) -> Iterator[Some]:
    """Key, value (None for one that should not be there) and how it is known, for each key once. ``sources`` and
    ``offsets`` are the view's position; ``refused`` places in the topic of rows that were not taken.
    """
    rows = derived.rows.where(F.col("source_offset") <= _reach(sources))
    if refused:
        places = spark.createDataFrame(sorted(refused), "partition int, offset long")
        topic = first_written(spark, cluster, generation, offsets)
        out = topic.join(F.broadcast(places), ["partition", "offset"], "left_semi").select(*_SOURCE)
        rows = rows.join(F.broadcast(out), _SOURCE, "left_anti")
    last = rows.groupBy("key").agg(
        F.max_by(F.struct("value"), "source_offset").alias("last"),
        F.count_distinct("source_partition").alias("partitions"),
    )
    one = F.col("partitions") == 1
    sure = last.where(one).select("key", F.col("last.value").alias("value"), F.lit(DERIVED).alias("known"))
    yield from collected(sure, derived.count, derived.row_bytes)
    if last.where(~one).limit(1).count():
        topic = first_written(spark, cluster, generation, offsets)
        yield from collected(
            _by_order(last.where(~one).select("key", "last"), rows, topic), derived.count, derived.row_bytes
        )


def _reach(sources: Mapping[str, int]) -> Column:
    if not sources:
        return F.lit(-1).cast("long")
    pairs = [part for place, at in sources.items() for part in (F.lit(place), F.lit(at).cast("long"))]
    place = F.concat_ws("/", F.col("partition"), F.col("source_partition"))
    return F.coalesce(F.try_element_at(F.create_map(*pairs), place), F.lit(-1).cast("long"))


def _by_order(keys: DataFrame, rows: DataFrame, topic: DataFrame) -> DataFrame:
    """Of keys with rows from several partitions of the input: the one that the topic has last, as it was derived."""
    told = topic.join(keys, "key", "left_semi").where(F.col("source_offset").isNotNull())
    newest = told.groupBy("key").agg(F.max_by(F.struct(*_SOURCE), "offset").alias("newest"))
    asked = keys.join(newest, "key", "left").select("key", "last", "newest.*")
    derived = rows.select("key", *_SOURCE, "value", F.lit(True).alias("derived"))
    held = asked.join(derived, ["key", *_SOURCE], "left")
    # What the topic has and was not derived is no row of the view: then any that was derived differs from it.
    value = F.when(F.col("derived"), F.col("value")).otherwise(F.col("last.value"))
    known = F.when(F.col("source_offset").isNotNull(), DERIVED).otherwise(UNKNOWN)
    return held.select("key", value.alias("value"), known.alias("known"))
