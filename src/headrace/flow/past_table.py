"""A table as it was: the last row of each key before some offsets that are long past.

A table's topic is compacted, so its past fades: of two rows of a key the log may have kept the later one only. Whether
the table of a moment can still be told is decided per partition. It can if no offset before the moment is missing, or
if what is missing was replaced before that moment as well, which is so if

- every key that is there has a row from before the moment, and
- no deletion from after the moment was itself removed: its key would be there no more, and its row unknown.

What is not certain is said to be unknown. ``min.compaction.lag.ms`` of the topic is how long its past is kept.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import reduce

from pyspark import StorageLevel
from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F

from headrace.client.cluster import Cluster
from headrace.flow.decoding import TimeBounds
from headrace.flow.inputs import history
from headrace.flow.plain_decoder import decode_plainly
from headrace.flow.tables import latest
from headrace.model.topic import Topic

__all__ = ["PastTable"]

_REMOVED_BELOW = "headrace.tombstones.removed.below"
_NEVER = 2**62


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
        self._replaced = there is None or there.id != topic_id
        if self._replaced:
            return
        self._starts, self._ends = cluster.starts(log), cluster.ends(log)
        self._began = {number: began.get(str(number), 0) for number in self._starts}
        configs = cluster.configs(log)
        self._compacted = "compact" in (configs.get("cleanup.policy") or "")
        told = configs.get(_REMOVED_BELOW)
        pairs = None if told is None else [pair.split(":") for pair in told.split(",") if pair]
        self._removed_below = None if pairs is None else {int(one): int(below) for one, below in pairs}
        ranges = {str(number): (self._starts[number], end) for number, end in self._ends.items()}
        raw = history(spark, cluster, log, ranges)
        decoded = decode_plainly(raw, topic, bounds.future_us, beside=("key",))
        self._records = decoded.select("key", "row", "reason", "partition", "offset").persist(
            StorageLevel.DISK_ONLY
        )
        offsets = sum(end - self._starts[number] for number, end in self._ends.items())
        has_holes = self._compacted and self._records.count() < offsets
        self._holes = self._look_for_holes() if has_holes else {}

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
        return not self._replaced and all(self._is_known(int(number), at) for number, at in offsets.items())

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
        """The last of each key through these offsets, deletions too: ``key``, ``row``."""
        return latest(self._records.where(_below(offsets)))

    def changed(self, base: DataFrame, since: Mapping[str, int], offsets: Mapping[str, int]) -> DataFrame:
        """``base`` is what ``folded`` gave for ``since``; only what came after it is looked at."""
        changes = latest(self._records.where(_below(offsets) & ~_below(since)))
        kept = base.join(F.broadcast(changes.select("key")), "key", "left_anti")
        return kept.unionByName(changes)

    @staticmethod
    def rows(folded: DataFrame) -> DataFrame:
        """What the function sees."""
        return folded.where(F.col("row").isNotNull()).select("row.*")

    def close(self) -> None:
        if not self._replaced:
            self._records.unpersist()


def _below(offsets: Mapping[str, int]) -> Column:
    parts = ((F.col("partition") == int(number)) & (F.col("offset") < at) for number, at in offsets.items())
    return reduce(lambda so_far, one: so_far | one, parts, F.lit(False))
