"""A table as it was: the last row of each key before some offsets that are long past.

A table's topic is compacted, so its past fades: of two rows of a key the log may have kept the later one only. Whether
the table of a moment can still be told is decided per partition. It can if no offset before the moment is missing, or
if what is missing was replaced before that moment as well, which is so if

- every key that is there has a row from before the moment, and
- no deletion from after the moment was itself removed: its key would be there no more, and its row unknown.

What is not certain is said to be unknown. ``min.compaction.lag.ms`` of the topic is how long its past is kept.

The fold is not that of the running flow (``headrace.flow.tables``), so that a mistake there is not repeated here. The
rule is the same: within a partition the later record of a key counts, between partitions the one with the later time,
then the one in the higher partition. A deletion in one partition that was removed may have hidden a row in another, so
where keys are in several partitions and deletions were removed, the past is unknown.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, reduce

from pyspark import StorageLevel
from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F

from headrace.client.cluster import Cluster
from headrace.client.tombstones import Tombstones
from headrace.flow.decoding import TimeBounds
from headrace.flow.inputs import history
from headrace.flow.plain_decoder import decode_plainly
from headrace.model.topic import Topic

__all__ = ["PastTable"]

_NEVER = 2**62
_STRETCHES_MAX = 10
_COLUMNS = ("key", "row", "reason", "partition", "offset", "logged_us")


@dataclass(frozen=True, slots=True)
class _Holes:
    """Of a partition: offsets that have no record, and the latest offset at which a key has its first row."""

    first: int
    last: int
    newest_key: int


class PastTable:
    def __init__(
        self,
        spark: SparkSession,
        cluster: Cluster,
        topic: Topic,
        log: str,
        topic_id: str,
        began: Mapping[str, int],
        bounds: TimeBounds,
    ) -> None:
        """``began`` is where the topic began when the generation did."""
        self.topic = topic
        self.log = log
        there = cluster.topic(log)
        self.is_replaced = there is None or there.id != topic_id
        if self.is_replaced:
            return
        starts = cluster.starts(log)
        self._starts = {one: at for one, at in starts.items() if not began or str(one) in began}
        self._began = {number: began.get(str(number), 0) for number in self._starts}
        self._compacted = Tombstones.of(cluster.configs(log)).compacted
        self._stretches: list[DataFrame] = []
        self._ends = self._read(spark, cluster, bounds)
        # Asked once all is read: a deletion that was removed before it was read is among them.
        self._removed_below = Tombstones.of(cluster.configs(log)).removed_below
        self._records = reduce(DataFrame.unionByName, self._stretches)
        offsets = sum(end - self._starts[number] for number, end in self._ends.items())
        has_holes = self._compacted and self._records.count() < offsets
        self._holes = self._look_for_holes() if has_holes else {}

    def _read(self, spark: SparkSession, cluster: Cluster, bounds: TimeBounds) -> dict[int, int]:
        """Gives where it ends. Compaction may remove a record before it is read, because a newer one of its key came
        behind the end: so a compacted topic is read on until nothing is missing, or nothing came.
        """
        reached, ends = self._starts, self._there(cluster)
        while True:
            ranges = {str(number): (reached[number], end) for number, end in ends.items()}
            raw = history(spark, cluster, self.log, ranges)
            decoded = decode_plainly(raw, self.topic, bounds.future_us, beside=("key", "timestamp"))
            logged = decoded.withColumn("logged_us", F.unix_micros("timestamp"))
            self._stretches.append(logged.select(*_COLUMNS).persist(StorageLevel.DISK_ONLY))
            offsets = sum(end - reached[number] for number, end in ends.items())
            is_whole = not self._compacted or self._stretches[-1].count() == offsets
            reached = ends
            # Each is much shorter than the one before: the last holds what was appended a moment ago.
            if is_whole or len(self._stretches) == _STRETCHES_MAX:
                return reached
            ends = self._there(cluster)
            if ends == reached:
                return reached

    def _there(self, cluster: Cluster) -> dict[int, int]:
        return {number: end for number, end in cluster.ends(self.log).items() if number in self._starts}

    def _look_for_holes(self) -> dict[int, _Holes]:
        starts = F.create_map(*(F.lit(one) for pair in self._starts.items() for one in pair))
        ordered = Window.partitionBy("partition").orderBy("offset")
        before = F.coalesce(F.lag("offset").over(ordered), starts[F.col("partition")] - 1)
        places = self._records.select("partition", "offset", before.alias("before"))
        holes = places.where("offset - before > 1").groupBy("partition")
        found = {
            row[0]: (row[1], row[2])
            for row in holes.agg(F.min(F.col("before") + 1), F.max(F.col("offset") - 1)).collect()
        }
        first = F.coalesce(F.min(F.when(F.col("reason").isNull(), F.col("offset"))), F.lit(_NEVER))
        firsts = self._records.groupBy("partition", "key").agg(
            first.alias("first"), F.max("offset").alias("last")
        )
        newest = {
            row[0]: (row[1], row[2])
            for row in firsts.groupBy("partition").agg(F.max("first"), F.max("last")).collect()
        }
        made = {}
        for number, end in self._ends.items():
            low, high = found.get(number, (_NEVER, -1))
            newest_key, last = newest.get(number, (-1, self._starts[number] - 1))
            if last < end - 1:
                low, high = min(low, last + 1), end - 1
            made[number] = _Holes(low, high, newest_key)
        return made

    def is_known_at(self, offsets: Mapping[str, int]) -> bool:
        """Whether the table through these offsets can still be told."""
        if self.is_replaced or (self._holes and self._may_lack_deletions() and self._has_moved_keys):
            return False
        return all(self._is_known(int(number), at) for number, at in offsets.items())

    def _may_lack_deletions(self) -> bool:
        return self._removed_below is None or any(self._removed_below.values())

    @cached_property
    def _has_moved_keys(self) -> bool:
        """Whether a key is in several partitions."""
        if len(self._starts) == 1:
            return False
        places = self._records.groupBy("key").agg((F.min("partition") < F.max("partition")).alias("moved"))
        return not places.where("moved").isEmpty()

    def _is_known(self, number: int, at: int) -> bool:
        if number not in self._starts or at > self._ends[number]:
            return False
        if self._starts[number] > self._began[number] and at > self._began[number]:
            return False
        holes = self._holes.get(number)
        if holes is None or holes.first >= at:
            return True
        removed = None if self._removed_below is None else self._removed_below.get(number, 0)
        hides_deletions = holes.last >= at and (removed is None or removed > at)
        return holes.newest_key < at and not hides_deletions

    def folded(self, offsets: Mapping[str, int]) -> DataFrame:
        """The last of each key in each partition through these offsets, deletions too."""
        return _last(self._records.where(_below(offsets)))

    def changed(self, base: DataFrame, since: Mapping[str, int], offsets: Mapping[str, int]) -> DataFrame:
        """``base`` is what ``folded`` gave for ``since``; only what came after it is looked at."""
        changes = _last(self._records.where(_below(offsets) & ~_below(since)))
        replaced = F.broadcast(changes.select("key", "partition"))
        return base.join(replaced, ["key", "partition"], "left_anti").unionByName(changes)

    def rows(self, folded: DataFrame) -> DataFrame:
        """What the function sees."""
        if self._has_moved_keys:
            newest = Window.partitionBy("key").orderBy(F.desc("logged_us"), F.desc("partition"))
            folded = folded.withColumn("place", F.row_number().over(newest)).where("place = 1")
        return folded.where(F.col("row").isNotNull()).select("row.*")

    def close(self) -> None:
        if not self.is_replaced:
            for stretch in self._stretches:
                stretch.unpersist()


def _last(records: DataFrame) -> DataFrame:
    latest_first = Window.partitionBy("key", "partition").orderBy(F.desc("offset"))
    fits = records.where(F.col("reason").isNull()).drop("reason")
    return fits.withColumn("place", F.row_number().over(latest_first)).where("place = 1").drop("place")


def _below(offsets: Mapping[str, int]) -> Column:
    parts = ((F.col("partition") == int(number)) & (F.col("offset") < at) for number, at in offsets.items())
    return reduce(lambda so_far, one: so_far | one, parts, F.lit(False))
