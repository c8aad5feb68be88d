"""Versions of a table: the last row of each key below earlier offsets.

A table's topic is compacted. If a key had two rows, the log may have retained only the later row, so old versions
become unknown. Whether a version is still known is decided for each partition. A version is known if no record below
its offset is missing, or if newer records below that offset had already replaced every missing record. They had
replaced all of them if

- every key that exists now has a row from before the offset, and
- no deletion after the offset was compacted away. The key of such a deletion no longer exists, so its row is unknown.

In any doubt, a version counts as unknown. The topic's ``min.compaction.lag.ms`` decides how long old versions remain
known.

This module shares no code with the running flow (``current``), so that a bug cannot be in both. Both follow the same
rules: within a partition, the last record of a key is the current one. Between partitions, it is the record with the
later timestamp, then the record in the higher partition. A deletion that was compacted away in one partition might have
replaced a row in another. So if keys are in several partitions and deletions were compacted away, old versions are
unknown.
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
from headrace.flow.codec.codec import TimeBounds
from headrace.flow.history.plain_decoder import plain_decode
from headrace.flow.inputs import history
from headrace.model.declarations import Topic

__all__ = ["TableVersions"]

_NEVER = 2**62
_READS_MAX = 10
_COLUMNS = ("key", "row", "reason", "partition", "offset", "logged_us")


@dataclass(frozen=True, slots=True)
class _MissingOffsets:
    """The first and the last missing offset of a partition. Every key that exists now has its first row at or before
    offset ``newest_key``.
    """

    first: int
    last: int
    newest_key: int


class TableVersions:
    def __init__(
        self,
        spark: SparkSession,
        cluster: Cluster,
        topic: Topic,
        log: str,
        topic_id: str,
        generation_starts: Mapping[str, int],
        bounds: TimeBounds,
    ) -> None:
        """``generation_starts`` has the start offsets of the topic when the generation began."""
        self.topic = topic
        self.log = log
        current = cluster.topic(log)
        self.is_replaced = current is None or current.id != topic_id
        if self.is_replaced:
            return
        starts = cluster.starts(log)
        self._starts = {
            number: offset
            for number, offset in starts.items()
            if not generation_starts or str(number) in generation_starts
        }
        self._generation_starts = {number: generation_starts.get(str(number), 0) for number in self._starts}
        self._compacted = Tombstones.of(cluster.configs(log)).compacted
        self._reads: list[DataFrame] = []
        self._ends = self._read(spark, cluster, bounds)
        # Query this after the read: deletions can be compacted away during the read, before they are read.
        self._removed_below = Tombstones.of(cluster.configs(log)).removed_below
        self._records = reduce(DataFrame.unionByName, self._reads)
        offsets = sum(end - self._starts[number] for number, end in self._ends.items())
        has_missing_offsets = self._compacted and self._records.count() < offsets
        self._missing = self._find_missing() if has_missing_offsets else {}

    def _read(self, spark: SparkSession, cluster: Cluster, bounds: TimeBounds) -> dict[int, int]:
        """Read the topic and return the end offsets.

        Compaction can remove a record before it is read, because a newer record of its key was appended after the end
        of the read. So a compacted topic is read further until no record is missing or no new record exists.
        """
        read_through, ends = self._starts, self._current_ends(cluster)
        while True:
            ranges = {str(number): (read_through[number], end) for number, end in ends.items()}
            raw = history(spark, cluster, self.log, ranges)
            decoded = plain_decode(raw, self.topic, bounds.future_us, extra_columns=("key", "timestamp"))
            logged = decoded.withColumn("logged_us", F.unix_micros("timestamp"))
            self._reads.append(logged.select(*_COLUMNS).persist(StorageLevel.DISK_ONLY))
            offsets = sum(end - read_through[number] for number, end in ends.items())
            is_whole = not self._compacted or self._reads[-1].count() == offsets
            read_through = ends
            # Each read is much shorter than the previous one, because it reads only records appended in the meantime.
            if is_whole or len(self._reads) == _READS_MAX:
                return read_through
            ends = self._current_ends(cluster)
            if ends == read_through:
                return read_through

    def _current_ends(self, cluster: Cluster) -> dict[int, int]:
        return {number: end for number, end in cluster.ends(self.log).items() if number in self._starts}

    def _find_missing(self) -> dict[int, _MissingOffsets]:
        starts = F.create_map(*(F.lit(part) for pair in self._starts.items() for part in pair))
        ordered = Window.partitionBy("partition").orderBy("offset")
        previous = F.coalesce(F.lag("offset").over(ordered), starts[F.col("partition")] - 1)
        offsets = self._records.select("partition", "offset", previous.alias("before"))
        missing_offsets = offsets.where("offset - before > 1").groupBy("partition")
        missing_ranges = {
            row[0]: (row[1], row[2])
            for row in missing_offsets.agg(F.min(F.col("before") + 1), F.max(F.col("offset") - 1)).collect()
        }
        first = F.coalesce(F.min(F.when(F.col("reason").isNull(), F.col("offset"))), F.lit(_NEVER))
        firsts = self._records.groupBy("partition", "key").agg(
            first.alias("first"), F.max("offset").alias("last")
        )
        newest = {
            row[0]: (row[1], row[2])
            for row in firsts.groupBy("partition").agg(F.max("first"), F.max("last")).collect()
        }
        result = {}
        for number, end in self._ends.items():
            low, high = missing_ranges.get(number, (_NEVER, -1))
            newest_key, last = newest.get(number, (-1, self._starts[number] - 1))
            if last < end - 1:
                low, high = min(low, last + 1), end - 1
            result[number] = _MissingOffsets(low, high, newest_key)
        return result

    def is_known_at(self, offsets: Mapping[str, int]) -> bool:
        """Whether the version at these offsets is still known."""
        if self.is_replaced or (self._missing and self._may_lack_deletions() and self._has_moved_keys):
            return False
        return all(self._is_known(int(number), offset) for number, offset in offsets.items())

    def _may_lack_deletions(self) -> bool:
        return self._removed_below is None or any(self._removed_below.values())

    @cached_property
    def _has_moved_keys(self) -> bool:
        """Whether a key is in several partitions."""
        if len(self._starts) == 1:
            return False
        keys = self._records.groupBy("key").agg((F.min("partition") < F.max("partition")).alias("moved"))
        return not keys.where("moved").isEmpty()

    def _is_known(self, number: int, offset: int) -> bool:
        if number not in self._starts or offset > self._ends[number]:
            return False
        if (
            self._starts[number] > self._generation_starts[number]
            and offset > self._generation_starts[number]
        ):
            return False
        missing_offsets = self._missing.get(number)
        if missing_offsets is None or missing_offsets.first >= offset:
            return True
        removed = None if self._removed_below is None else self._removed_below.get(number, 0)
        hides_deletions = missing_offsets.last >= offset and (removed is None or removed > offset)
        return missing_offsets.newest_key < offset and not hides_deletions

    def last_records(self, offsets: Mapping[str, int]) -> DataFrame:
        """Return, for each partition and key, the last record below these offsets, including deletions."""
        return _last(self._records.where(_below(offsets)))

    def changed_since(
        self, base: DataFrame, since: Mapping[str, int], offsets: Mapping[str, int]
    ) -> DataFrame:
        """Return the same rows as ``last_records(offsets)``, but compute them from ``base``, which is
        ``last_records(since)``, and from the records after ``since``.
        """
        changes = _last(self._records.where(_below(offsets) & ~_below(since)))
        replaced = F.broadcast(changes.select("key", "partition"))
        return base.join(replaced, ["key", "partition"], "left_anti").unionByName(changes)

    def rows(self, last_records: DataFrame) -> DataFrame:
        """Return the rows that are passed to the flow's function."""
        if self._has_moved_keys:
            newest = Window.partitionBy("key").orderBy(F.desc("logged_us"), F.desc("partition"))
            last_records = last_records.withColumn("rank", F.row_number().over(newest)).where("rank = 1")
        return last_records.where(F.col("row").isNotNull()).select("row.*")

    def close(self) -> None:
        if not self.is_replaced:
            for read in self._reads:
                read.unpersist()


def _last(records: DataFrame) -> DataFrame:
    latest_first = Window.partitionBy("key", "partition").orderBy(F.desc("offset"))
    valid = records.where(F.col("reason").isNull()).drop("reason")
    return valid.withColumn("rank", F.row_number().over(latest_first)).where("rank = 1").drop("rank")


def _below(offsets: Mapping[str, int]) -> Column:
    parts = (
        (F.col("partition") == int(number)) & (F.col("offset") < offset) for number, offset in offsets.items()
    )
    return reduce(lambda matches, part: matches | part, parts, F.lit(False))
