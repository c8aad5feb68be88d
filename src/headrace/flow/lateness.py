"""Decides which events of an input are late, while Spark reads them.

An event is late if it is more than the topic's ``late`` behind the newest event time of the earlier records in its
partition. Each task of Spark reads one partition in the order of its offsets, so the newest event time is a running
maximum. Each task has its own copy of an array in the JVM, with the value of each partition before the batch; an
expression of the plan updates it with every record. The progress record of a batch has these values before and after
the batch, so a batch that runs again finds the same late events, and so does every other flow, however it cuts the
partitions into batches.

Spark drops old state by its own watermark, which is the same for all partitions. An event before the watermark could no
longer be counted, and Spark would drop it without a trace. So the flow sets Spark's watermark (``SparkWatermark``): to
the oldest of its partitions. A partition that has had no events, or has been idle for ``flow.idle_ms``, does not hold
the watermark back. If such a partition later has an event that is before the watermark but not late, the event becomes
a dead letter of this flow (``Reason.BEHIND``); a rebuild counts it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from headrace.clock import Clock
from headrace.flow.spark.internals import JvmCell
from headrace.model.declarations import LatePolicy
from headrace.model.progress import DeletedHead

__all__ = ["Lateness", "PartitionTimes", "WatermarkPolicy", "without_lateness"]

_UNSEEN_US = -(2**62)
"""The newest event time of a partition without events. It is earlier than every event time, and differences to it fit
into 64 bits.
"""
_SPARE_PARTITIONS = 1_024
"""New partitions can appear in a batch before the run notices them. Their records must not exceed the array."""

PartitionTimes = Mapping[int, int]
"""By partition, the newest event time in microseconds."""


@dataclass(slots=True)
class _DeletedHeads:
    """Values of ``DeletedHead`` by partition, as arrays in the JVM."""

    ends: JvmCell
    newest_us: JvmCell
    late: list[str]
    """The late events, as partition and offset."""


class Lateness:
    """The late events of one input. ``load`` must be called before each batch."""

    def __init__(
        self,
        spark: SparkSession,
        policy: LatePolicy,
        partitions: int,
        deleted: Mapping[int, DeletedHead],
        watermark: Column | None = None,
    ) -> None:
        """``watermark`` is the flow's watermark if it keeps state by event time."""
        self.partitions = partitions
        self.start: PartitionTimes = {}
        """The newest event times before the batch."""
        self._spark = spark
        self._policy = policy
        self._deleted = deleted
        self._watermark = watermark
        size = partitions + _SPARE_PARTITIONS
        self._newest = JvmCell(spark, _UNSEEN_US, size)
        self._heads: _DeletedHeads | None = None
        if deleted:
            late = [f"{number}/{offset}" for number, head in deleted.items() for offset in head.late]
            self._heads = _DeletedHeads(JvmCell(spark, 2**62, size), JvmCell(spark, _UNSEEN_US, size), late)
            for number, head in deleted.items():
                self._heads.ends.set(head.end, number)
                self._heads.newest_us.set(head.newest_at_end_us, number)

    def load(self, start: PartitionTimes) -> None:
        """Set the newest event times before the next batch."""
        for number in self.start.keys() | start.keys():
            self._newest.set(start.get(number, _UNSEEN_US), number)
        self.start = dict(start)

    def fork(self) -> Lateness:
        """Return the same rules with separate values, to read records of the batch again."""
        forked = Lateness(self._spark, self._policy, self.partitions, self._deleted, self._watermark)
        forked.load(self.start)
        return forked

    def add_columns(self, decoded: DataFrame) -> DataFrame:
        """Add ``newest_us`` (the newest event time before the record), ``late`` and ``behind`` (too old for the flow's
        state, but not late).
        """
        partition, event_us = F.col("partition"), F.coalesce(F.col("event_us"), F.lit(_UNSEEN_US))
        known = self._newest.call("get", partition, deterministic=False)
        advance = F.greatest(event_us - known, F.lit(0))
        late = F.coalesce(F.col("event_us") < F.col("newest_us") - self._policy.allowed_us, F.lit(False))
        if self._heads is not None:
            is_past = F.col("offset") >= self._heads.ends.call("get", partition, deterministic=True)
            at_end = self._heads.newest_us.call("get", partition, deterministic=True)
            floor = F.when(is_past, at_end).otherwise(F.lit(_UNSEEN_US))
            advance = F.greatest(advance, floor - known)
            if self._heads.late:
                late |= F.concat_ws("/", "partition", "offset").isin(self._heads.late)
        # One call returns the value before the record, and adds the difference to the newer event time.
        newest = self._newest.call("getAndAdd", partition, advance, deterministic=False)
        if self._heads is not None:
            newest = F.greatest(newest, floor)
        marked = decoded.withColumn("newest_us", newest).withColumn("late", late)
        if self._watermark is None:
            return marked.withColumn("behind", F.lit(False))
        behind = F.coalesce(~F.col("late") & (F.col("event_us") < self._watermark), F.lit(False))
        return marked.withColumn("behind", behind)


def without_lateness(decoded: DataFrame) -> DataFrame:
    """Add the columns of ``Lateness.add_columns`` for an input in which no record is late."""
    no_time = F.lit(None).cast("long")
    return (
        decoded.withColumn("newest_us", no_time)
        .withColumn("late", F.lit(False))
        .withColumn("behind", F.lit(False))
    )


@dataclass(slots=True)
class WatermarkPolicy:
    """Computes the event time that an input has reached: the oldest of its partitions that hold the watermark back."""

    clock: Clock
    idle_s: float
    _read_s: dict[tuple[str, int], float] = field(default_factory=dict)
    """When this run last read records of a partition."""

    def reached_us(
        self, topic: str, newest: PartitionTimes, read: Collection[int], unread: Collection[int]
    ) -> int | None:
        """Return None if the input has had no event, or if a partition has unread records but no events yet.

        ``read`` are the partitions of which the batch has read records, ``unread`` those with unread records.
        """
        now_s = self.clock.steady()
        for number in read:
            self._read_s[topic, number] = now_s
        holding = []
        for number in newest.keys() | set(unread):
            last_s = self._read_s.setdefault((topic, number), now_s)
            if number in unread or now_s - last_s < self.idle_s:
                holding.append(newest.get(number))
        if not holding:
            return max(newest.values(), default=None)
        return None if None in holding else min(time_us for time_us in holding if time_us is not None)
