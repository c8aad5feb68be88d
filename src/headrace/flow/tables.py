"""A table that a flow reads: the last row of each key, kept fresh from its changelog.

The first look reads the whole topic, in Spark. A small table is then held here, and given to every batch as it is; of a
large one the rows stay in Spark, and what has changed since is held here and laid over them, until both are made one.
After the first look only what was added is read, by one consumer that stays. No event asks anybody: a batch joins with
the table as it was when the batch began, through offsets that its progress record names.

A row that comes before its table row finds no match: an inner join leaves it out, a left join fills nulls. It is not
looked at again when the table row arrives; which of the two it shall be is said by the join.
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from typing import Any

from confluent_kafka import Consumer, KafkaError, TopicPartition
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from headrace.client.cluster import Cluster
from headrace.client.errors import LogError, from_kafka
from headrace.client.reading import take
from headrace.flow.decoding import Decoder, TimeBounds
from headrace.flow.inputs import history
from headrace.flow.left_out import LeftOut
from headrace.flow.local_rows import local_rows
from headrace.flow.types import struct_of
from headrace.model.topic import Topic

__all__ = ["TableState", "latest"]

_FEW = 20_000
_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_PATIENCE_S = 30.0
_KEY = T.StructType([T.StructField("key", T.BinaryType())])
_ADDED = T.StructType(
    [
        *_KEY.fields,
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
    """``told`` is how far the dead letters of the table were sent before; a first look finds those again."""

    def __init__(
        self,
        spark: SparkSession,
        cluster: Cluster,
        topic: Topic,
        log: str,
        bounds: TimeBounds,
        told: Mapping[str, int],
    ) -> None:
        assert topic.schema is not None
        self.topic = topic
        self.log = log
        self._told = told
        self.reached: dict[str, int] = {}
        self.frame: DataFrame
        self._spark = spark
        self._cluster = cluster
        self._decoder = Decoder(topic, bounds)
        self._shape = struct_of(topic.schema.fields)
        self._loaded = False
        self._kept: DataFrame | None = None
        """The rows that stay in Spark, if they are many: columns ``key`` and ``row``."""
        self._held: dict[bytes | None, dict[str, Any] | None] = {}
        """All rows, if they are few; else those that have changed since, None where one was deleted."""
        self._consumer: Consumer | None = None

    def refresh(self) -> list[LeftOut]:
        """Bring ``frame`` to the topic's end; gives the values that do not fit."""
        ends = self._cluster.ends(self.log)
        if not self._loaded:
            return self._load({str(number): end for number, end in ends.items()})
        behind = {number: end for number, end in ends.items() if end > self.reached.get(str(number), 0)}
        if not behind:
            return []
        decoded = self._decoder.decode(self._frame_of(self._read(behind))).toArrow().to_pylist()
        for one in sorted(decoded, key=lambda record: (record["partition"], record["offset"])):
            if one["reason"] is None:
                self._hold(one["key"], one["row"])
        self.reached |= {str(number): end for number, end in ends.items()}
        self._show()
        return [_side(self.log, one) for one in decoded if one["reason"] is not None]

    def close(self) -> None:
        if self._consumer is not None:
            self._consumer.close()

    def _load(self, ends: dict[str, int]) -> list[LeftOut]:
        starts = self._cluster.starts(self.log)
        ranges = {number: (starts[int(number)], end) for number, end in ends.items()}
        decoded = self._decoder.decode(history(self._spark, self._cluster, self.log, ranges))
        rows = latest(decoded).where(F.col("row").isNotNull()).localCheckpoint(eager=True)
        if rows.count() <= _FEW:
            for one in rows.toArrow().to_pylist():
                self._hold(one["key"], one["row"])
        else:
            self._kept = rows
        dead = decoded.where(F.col("reason").isNotNull()).toArrow().to_pylist()
        self.reached = ends
        self._loaded = True
        self._show()
        return [
            _side(self.log, one) for one in dead if one["offset"] >= self._told.get(str(one["partition"]), 0)
        ]

    def _hold(self, key: bytes | None, row: dict[str, Any] | None) -> None:
        if row is None and self._kept is None:
            self._held.pop(key, None)
        else:
            self._held[key] = row

    def _show(self) -> None:
        """Make ``frame`` of what is held and kept."""
        if len(self._held) > _FEW:
            self._merge()
        rows = [row for row in self._held.values() if row is not None]
        self.frame = local_rows(self._spark, rows, self._shape)
        if self._kept is not None:
            self.frame = self._unchanged(self._kept).select("row.*").unionByName(self.frame)

    def _merge(self) -> None:
        """What is held goes to what stays in Spark."""
        shape = T.StructType([*_KEY.fields, T.StructField("row", self._shape)])
        changed = [{"key": key, "row": row} for key, row in self._held.items() if row is not None]
        merged = local_rows(self._spark, changed, shape)
        if self._kept is not None:
            merged = self._unchanged(self._kept).unionByName(merged)
        self._kept = merged.localCheckpoint(eager=True)
        self._held = {}

    def _unchanged(self, kept: DataFrame) -> DataFrame:
        keys = local_rows(self._spark, [{"key": key} for key in self._held], _KEY)
        return kept.join(F.broadcast(keys), "key", "left_anti")

    def _read(self, behind: dict[int, int]) -> list[tuple[bytes | None, bytes | None, int, int]]:
        if self._consumer is None:
            self._consumer = self._cluster.consumer({"fetch.wait.max.ms": 10})
        wanted = dict(behind)
        places = [TopicPartition(self.log, number, self.reached.get(str(number), 0)) for number in wanted]
        self._consumer.assign(places)
        found: list[tuple[bytes | None, bytes | None, int, int]] = []
        while wanted:
            messages = take(self._consumer, 10_000, _PATIENCE_S)
            if not messages:
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

    def _frame_of(self, records: list[tuple[bytes | None, bytes | None, int, int]]) -> DataFrame:
        rows = [dict(zip(_ADDED.names, (*one, _EPOCH), strict=True)) for one in records]
        return local_rows(self._spark, rows, _ADDED)


def _side(log: str, record: dict[str, Any]) -> LeftOut:
    names = ("partition", "offset", "key", "value", "reason", "event_us")
    return LeftOut(log, *(record[name] for name in names))
