"""The rows that ``verify`` derived again for a flow, with the keys for which they are complete and the last
row of each key.

Each derived row has the number of its batch and its coordinates: the input record from which it was derived
(``headrace.flow.compile.lineage``). The last row of a key is the row with the greatest batch and coordinates, so the
flow's topic is not needed to find it.

In two cases, coordinates do not define the order: an outer join of two streams delays some rows, and
``dropDuplicatesWithinWatermark`` forgets old rows. For such flows, the last row of a key is the topic's last row of the
key. If ``verify`` also derived that row, it is proven; otherwise it is known only from the topic. The topic is also
used for a key if a view rejected one of its rows, because a rejected row is identified by its offset in the topic.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from pyspark import StorageLevel
from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F

from headrace.client.cluster import Cluster
from headrace.flow.codec.codec import value_encoder
from headrace.flow.compile.compiler import Compiled
from headrace.flow.compile.lineage import lineage_columns
from headrace.flow.compile.plan import OrderSensitiveOperators
from headrace.flow.history.gaps import MissingInput
from headrace.flow.history.plain_encoder import normalize_values
from headrace.flow.history.written import is_whole, output_ranges, read_written
from headrace.flow.realtime_rows import output_partition
from headrace.model.progress import Batch, Generation

__all__ = [
    "ALL",
    "BY_TOPIC",
    "DERIVED",
    "NOTHING",
    "TIE",
    "UNKNOWN",
    "Derived",
    "Extent",
    "RowColumns",
    "collect_chunks",
    "count_equal_rows",
    "fold_by_fields",
    "fold_by_key",
    "has_initial_partitions",
    "is_multiset_provable",
    "is_order_derivable",
    "is_order_open",
    "last_written",
    "number_rows",
    "number_written_rows",
]

TIE = "_headrace_tie"
"""The column that orders rows with the same coordinates, for example one event joined with several table rows."""


@dataclass(frozen=True, slots=True)
class Extent:
    """Defines for which keys the derived rows are complete."""

    kind: Literal["all", "derived keys", "later times", "nothing"]
    """``derived keys``: only keys with a derived row; other keys might have rows from input that was deleted.
    ``later times``: all keys whose ``field`` is greater than ``above``.
    """
    field: str = ""
    above: str = ""


ALL, NOTHING = Extent("all"), Extent("nothing")


@dataclass(slots=True)
class Derived:
    rows: DataFrame
    """One row for each row that the function returned: ``key`` and ``value`` as in the topic (a null value is a
    deletion), and the columns in ``order``. Persisted on disk until ``close``.
    """
    count: int
    row_bytes: int
    """The average size of a row."""
    through: Batch
    after: Batch | None
    """The rows are from the batches after this batch. None: from all batches."""
    extent: Extent
    operators: OrderSensitiveOperators
    records: int
    """The number of input records that were read."""
    late: int
    dead: int
    missing: tuple[MissingInput, ...] = ()
    mistakes: tuple[str, ...] = ()
    """Differences between the records that were read now and the progress records of the flow."""
    persisted: list[DataFrame] = field(default_factory=list)

    @property
    def order(self) -> list[str]:
        """The columns that order the rows of a key; empty if every key has only one row."""
        ties = [TIE] if TIE in self.rows.columns else []
        return [*lineage_columns(self.rows), *ties]

    def close(self) -> None:
        for frame in self.persisted:
            frame.unpersist()


DERIVED, BY_TOPIC, UNKNOWN = 0, 1, 2
"""How a row is known: it was derived, it is known only from the topic, or it is unknown."""
_ROWS_PER_CHUNK = 1_000_000
_BYTES_PER_CHUNK = 64 << 20
_OFFSETS = "partition int, offset long"
RowColumns = Sequence[list[Any]]
"""Some rows, as a list of columns."""


def fold_by_key(
    spark: SparkSession,
    cluster: Cluster,
    compiled: Compiled,
    generation: Generation,
    derived: Derived,
    rejected: Collection[tuple[int, int]] = (),
) -> Iterator[RowColumns]:
    """Yield the last row of each key: the key, the value (None if the key should not exist) and how the value is known
    (``DERIVED``, ``BY_TOPIC`` or ``UNKNOWN``).

    ``rejected`` has the partitions and offsets of rows that the view rejected. These rows are ignored.
    """
    if rejected or is_order_open(compiled, derived):
        by_topic_rows = _fold_with_topic(spark, cluster, compiled, generation, derived, rejected)
        yield from collect_chunks(by_topic_rows, derived.count, derived.row_bytes)
        return
    known = F.lit(DERIVED).alias("known")
    yield from collect_chunks(
        _last_derived(derived).select("key", "value", known), derived.count, derived.row_bytes
    )


def is_order_open(compiled: Compiled, derived: Derived) -> bool:
    """Whether coordinates do not define which rows the flow writes, and in which order."""
    operators = derived.operators
    return compiled.stateful and (operators.holds_back or operators.forgets_duplicates)


def _last_derived(derived: Derived) -> DataFrame:
    """Return each key with its last value. Rows without coordinates are groups of an aggregation, one per key."""
    order = derived.order
    last = F.max_by(F.struct("value"), F.struct(*order)) if order else F.max(F.struct("value"))
    keys = derived.rows.groupBy("key").agg(last.alias("last"))
    return keys.select("key", F.col("last.value").alias("value"))


def is_order_derivable(compiled: Compiled, generation: Generation, derived: Derived) -> bool:
    """Whether coordinates define the order of all rows, not only of the rows of each key."""
    if not derived.order or compiled.mode != "append" or is_order_open(compiled, derived):
        return False
    return has_initial_partitions(generation, derived)


def has_initial_partitions(generation: Generation, derived: Derived) -> bool:
    """Whether the topic has no more partitions than at the start of the generation. If partitions were added, a key can
    have rows in two partitions.
    """
    return derived.through.outputs.get(generation.output, {}).keys() <= generation.output_starts.keys()


def fold_by_fields(
    spark: SparkSession,
    compiled: Compiled,
    generation: Generation,
    derived: Derived,
    names: Sequence[str],
) -> Iterator[RowColumns]:
    """Same as ``fold_by_key``, for a view whose key fields ``names`` differ from the topic's key.

    A view applies a batch partition by partition, so within a batch the row in the highest partition is the last. A
    deletion has only the topic's key, so such a view ignores it.
    """
    batch, *order = derived.order
    partition = output_partition(spark, F.col("key"), generation)
    key_fields = value_encoder(compiled.schema).field_texts(F.col("value"), names)
    last = F.max_by(F.struct("key", "value"), F.struct(batch, partition.alias("partition"), *order))
    rows = (
        derived.rows.where(F.col("value").isNotNull()).groupBy(key_fields.alias("by")).agg(last.alias("last"))
    )
    yield from collect_chunks(
        rows.select("last.*", F.lit(DERIVED).alias("known")), derived.count, derived.row_bytes
    )


def number_rows(derived: Derived) -> DataFrame:
    """Return ``key``, ``value`` (``null`` for a deletion) and ``nth``, the number of the row within its key."""
    return _number_rows(derived.rows, derived.order)


def number_written_rows(topic: DataFrame, partition: Column) -> DataFrame:
    """Same as ``number_rows``, for the rows of the topic. ``partition`` is the correct partition of the key.

    A row in another partition gets a negative number, because consumers could read the rows of its key in any order.
    """
    rows = _number_rows(
        topic, ["offset"], extra_columns=[(F.col("partition") == partition).alias("in_partition")]
    )
    nth = F.when(F.col("in_partition"), F.col("nth")).otherwise(-F.col("nth"))
    return rows.select("key", "value", nth.alias("nth"))


def _number_rows(rows: DataFrame, order: Sequence[str], extra_columns: Sequence[Column] = ()) -> DataFrame:
    by_key = Window.partitionBy("key").orderBy(*order)
    text = F.coalesce("value", F.lit("null")).alias("value")
    return rows.select("key", text, F.row_number().over(by_key).alias("nth"), *extra_columns)


def _fold_with_topic(
    spark: SparkSession,
    cluster: Cluster,
    compiled: Compiled,
    generation: Generation,
    derived: Derived,
    rejected: Collection[tuple[int, int]],
) -> DataFrame:
    """Use the topic for keys with rejected rows, or for all keys if coordinates do not define the order."""
    is_open = is_order_open(compiled, derived)
    ranges = output_ranges(generation, derived.after, derived.through)
    topic = normalize_values(read_written(spark, cluster, generation, ranges), compiled.schema)
    keys = _last_derived(derived).withColumn("rejected", F.lit(None).cast("boolean"))
    if rejected:
        offsets = F.broadcast(spark.createDataFrame(sorted(rejected), _OFFSETS))
        keys_with_rejected = (
            topic.join(offsets, ["partition", "offset"], "left_semi").select("key").distinct()
        )
        keys = keys.drop("rejected").join(
            F.broadcast(keys_with_rejected.withColumn("rejected", F.lit(True))), "key", "left"
        )
        topic = topic.join(offsets, ["partition", "offset"], "left_anti")
    last = last_written(topic).withColumnRenamed("value", "topic_value").withColumn("is_written", F.lit(True))
    rows = derived.rows.select(
        F.col("key").alias("derived_key"), F.col("value").alias("derived_value"), F.lit(True).alias("derived")
    ).distinct()
    needs_topic = F.col("rejected").isNotNull() | F.lit(is_open)
    persisted = keys.where(needs_topic).join(last, "key", "left")
    persisted = persisted.join(
        rows,
        (F.col("derived_key") == F.col("key")) & F.col("derived_value").eqNullSafe(F.col("topic_value")),
        "left",
    )
    may_delay_rows = is_open and derived.operators.holds_back
    is_topic_complete = is_whole(cluster, generation, ranges)
    decided = _with_known_values(
        persisted, is_topic_complete=is_topic_complete, may_delay_rows=may_delay_rows, is_open=is_open
    )
    if is_open:
        return decided
    from_coordinates = keys.where(~needs_topic).select("key", "value", F.lit(DERIVED).alias("known"))
    return from_coordinates.unionByName(decided)


def _with_known_values(
    persisted: DataFrame, *, is_topic_complete: bool, may_delay_rows: bool, is_open: bool
) -> DataFrame:
    """Return the value of each key and how it is known. The columns: ``topic_value`` is the topic's last value of the
    key, valid only if ``is_written``. ``derived`` says whether a derived row has that value. ``is_open``: coordinates
    do not define the order of the rows. ``may_delay_rows``: a join may write a row later.
    """
    is_written, derived = F.col("is_written").isNotNull(), F.col("derived").isNotNull()
    rejected = F.col("rejected").isNotNull() & F.lit(is_topic_complete)
    by_topic = is_written & (derived | F.lit(is_open))
    # If the topic has no row of the key, a join may still delay the row, or compaction may have removed it.
    # If neither is possible, the row is missing in the topic.
    how_without_row = UNKNOWN if may_delay_rows or not is_topic_complete else DERIVED
    known = (
        F.when(is_written & (derived | F.lit(not is_open)), DERIVED)
        .when(is_written, BY_TOPIC)
        .when(rejected, DERIVED)
    )
    null = F.lit(None).cast("string")
    value = (
        F.when(by_topic, F.col("topic_value")).when(~is_written & rejected, null).otherwise(F.col("value"))
    )
    return persisted.select("key", value.alias("value"), known.otherwise(how_without_row).alias("known"))


def last_written(topic: DataFrame) -> DataFrame:
    """Return the value with the highest offset for each key (null for a deletion). A key must be in one partition."""
    last = F.max_by(F.struct("value"), "offset")
    return topic.groupBy("key").agg(last.alias("last")).select("key", F.col("last.value").alias("value"))


def count_equal_rows(rows: DataFrame) -> DataFrame:
    """Count how often each row occurs: ``key``, ``value`` (``null`` for a deletion), ``times``."""
    text = F.coalesce("value", F.lit("null")).alias("value")
    return rows.select("key", text).groupBy("key", "value").agg(F.count(F.lit(1)).alias("times"))


def is_multiset_provable(compiled: Compiled, derived: Derived, *, whole: bool) -> bool:
    """Whether the topic must contain every derived row exactly once. If rows of a key replace each other, the topic can
    contain more rows.
    """
    return whole and compiled.mode == "append" and not is_order_open(compiled, derived)


def collect_chunks(frame: DataFrame, rows_max: int, row_bytes: int) -> Iterator[RowColumns]:
    """Yield the columns of all rows in chunks of limited size. ``rows_max`` (the most rows that ``frame`` can have) and
    ``row_bytes`` (their average size) determine the number of chunks.
    """
    chunks = max(1, math.ceil(rows_max * max(row_bytes / _BYTES_PER_CHUNK, 1 / _ROWS_PER_CHUNK)))
    if chunks == 1:
        yield _columns(frame)
        return
    frame = frame.persist(StorageLevel.DISK_ONLY)
    try:
        for chunk in range(chunks):
            yield _columns(frame.where(F.pmod(F.xxhash64("key"), F.lit(chunks)) == chunk))
    finally:
        frame.unpersist()


def _columns(frame: DataFrame) -> RowColumns:
    return [column.to_pylist() for column in frame.toArrow().columns]
