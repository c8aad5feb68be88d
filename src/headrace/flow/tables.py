"""A table that a flow reads: the last row of each key, kept fresh from its changelog.

The first look reads the whole topic, in Spark, and keeps the rows there. After that only what was added is read, by
one consumer that stays, and laid over what is kept; when that has grown, both are made one. No event asks anybody: a
batch joins with the table as it was when the batch began, through offsets that its progress record names.

A row that comes before its table row finds no match: an inner join leaves it out, a left join fills nulls. It is not
looked at again when the table row arrives; which of the two it shall be is said by the join.
"""

from __future__ import annotations

import datetime
import time

from confluent_kafka import Consumer, KafkaError, TopicPartition
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from headrace.client.cluster import Cluster
from headrace.client.errors import LogError, from_kafka
from headrace.flow.batch import SideRow
from headrace.flow.decoding import TimeBounds, decode
from headrace.flow.inputs import history
from headrace.model.topic import Topic

__all__ = ["TableState", "latest"]

_MERGE_ABOVE = 10_000
_PATIENCE_S = 30.0
_ADDED = T.StructType(
    [
        T.StructField("key", T.BinaryType()),
        T.StructField("value", T.BinaryType()),
        T.StructField("partition", T.IntegerType(), False),
        T.StructField("offset", T.LongType(), False),
        T.StructField("timestamp", T.TimestampType(), False),
    ]
)


def latest(decoded: DataFrame) -> DataFrame:
    """The last of each key, deletions too, as they fold: columns ``key``, ``row`` (null deletes).

    A value that does not fit changes nothing: the row that was there before it stays.
    """
    fits = decoded.where(F.col("reason").isNull())
    return fits.groupBy("key").agg(F.max_by("row", "offset").alias("row"))


class TableState:
    def __init__(
        self, spark: SparkSession, cluster: Cluster, topic: Topic, log: str, bounds: TimeBounds
    ) -> None:
        self.topic = topic
        self.log = log
        self.reached: dict[str, int] = {}
        self.frame: DataFrame
        self._spark = spark
        self._cluster = cluster
        self._bounds = bounds
        self._kept: DataFrame | None = None
        self._added: dict[bytes | None, tuple[bytes | None, int, int]] = {}
        self._consumer: Consumer | None = None

    def refresh(self) -> list[SideRow]:
        """Bring ``frame`` to the topic's end; gives the values that do not fit."""
        ends = self._cluster.ends(self.log)
        if self._kept is None:
            return self._load({str(number): end for number, end in ends.items()})
        behind = {number: end for number, end in ends.items() if end > self.reached.get(str(number), 0)}
        if not behind:
            return []
        new = self._read(behind)
        dead = self._dead(new)
        bad = {(row.partition, row.offset) for row in dead}
        for key, value, partition, offset in new:
            if (partition, offset) not in bad:
                self._added[key] = (value, partition, offset)
        self.reached |= {str(number): end for number, end in ends.items()}
        self._lay_over()
        return dead

    def close(self) -> None:
        if self._consumer is not None:
            self._consumer.close()

    def _load(self, ends: dict[str, int]) -> list[SideRow]:
        starts = self._cluster.starts(self.log)
        ranges = {number: (starts[int(number)], end) for number, end in ends.items()}
        decoded = decode(history(self._spark, self._cluster, self.log, ranges), self.topic, self._bounds)
        self._keep(latest(decoded))
        self.reached = ends
        self.frame = self._rows(self._kept_frame)
        dead = decoded.where(F.col("reason").isNotNull()).select(
            "partition", "offset", "key", "value", "reason", "event_us"
        )
        return [SideRow(self.log, *row.values()) for row in dead.toArrow().to_pylist()]

    def _read(self, behind: dict[int, int]) -> list[tuple[bytes | None, bytes | None, int, int]]:
        if self._consumer is None:
            self._consumer = self._cluster.consumer()
        wanted = dict(behind)
        places = [TopicPartition(self.log, number, self.reached.get(str(number), 0)) for number in wanted]
        self._consumer.assign(places)
        found: list[tuple[bytes | None, bytes | None, int, int]] = []
        deadline = time.monotonic() + _PATIENCE_S
        while wanted:
            # It waits for as many as it is asked for: so for what is there, and not for long.
            messages = self._consumer.consume(10_000, 0.01)
            if messages:
                deadline = time.monotonic() + _PATIENCE_S
            elif time.monotonic() > deadline:
                raise LogError(f"topic {self.log!r} did not answer", name="TIMED_OUT", retriable=True)
            for message in messages:
                error, partition, offset = message.error(), message.partition() or 0, message.offset() or 0
                if error is not None and error.code() != KafkaError._PARTITION_EOF:
                    raise from_kafka(error, f"reading table {self.log!r}")
                if partition not in wanted:
                    continue
                if error is None and offset < wanted[partition]:
                    found.append((message.key(), message.value(), partition, offset))
                if offset + (error is None) >= wanted[partition]:
                    del wanted[partition]
        self._consumer.unassign()
        return found

    def _dead(self, new: list[tuple[bytes | None, bytes | None, int, int]]) -> list[SideRow]:
        decoded = decode(self._frame_of(new), self.topic, self._bounds)
        bad = decoded.where(F.col("reason").isNotNull()).select(
            "partition", "offset", "key", "value", "reason", "event_us"
        )
        return [SideRow(self.log, *row.values()) for row in bad.toArrow().to_pylist()]

    def _frame_of(self, records: list[tuple[bytes | None, bytes | None, int, int]]) -> DataFrame:
        epoch = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
        return self._spark.createDataFrame([(*one, epoch) for one in records], _ADDED)

    def _lay_over(self) -> None:
        added = [(key, value, partition, offset) for key, (value, partition, offset) in self._added.items()]
        changes = latest(decode(self._frame_of(added), self.topic, self._bounds))
        kept = self._kept_frame
        merged = kept.join(F.broadcast(changes.select("key")), "key", "left_anti").unionByName(changes)
        if len(added) > _MERGE_ABOVE:
            self._keep(merged)
            self._added = {}
            merged = self._kept_frame
        self.frame = self._rows(merged)

    def _keep(self, frame: DataFrame) -> None:
        before = self._kept
        self._kept = frame.localCheckpoint(eager=True)
        if before is not None:
            before.unpersist()

    @property
    def _kept_frame(self) -> DataFrame:
        assert self._kept is not None
        return self._kept

    @staticmethod
    def _rows(frame: DataFrame) -> DataFrame:
        return frame.where(F.col("row").isNotNull()).select("row.*")
