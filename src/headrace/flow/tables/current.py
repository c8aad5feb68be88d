"""The current rows of a table that a flow joins: the last row of each key, updated from the table's topic.

The first call of ``refresh`` reads the whole topic, in Spark. The rows of a small table are then held in this process
and passed to every batch. The rows of a large table remain in Spark. Their later changes are held in this process and
override the rows in Spark until both are merged. After the first refresh, one consumer reads only new records. A batch
joins the table as it was when the batch began. The progress record of the batch has the offsets of that version.

Such a version must be consistent: the table must have had exactly these rows at some time. Compaction can remove a row
while the topic is read, because a newer row of its key was appended. So if records are missing, the consumer continues
to the current end of the topic. Compaction also removes deletion markers after some time
(``headrace.client.tombstones``). So the table is read between batches too, and it is loaded again if a deletion might
have been missed.

Within a partition, the last record of a key is the current one. If partitions were added, one key can have rows in
several partitions. These rows are ordered by their timestamps in the log, then by partition.

If an event arrives before its table row, an inner join drops the event and a left join returns nulls. The event is not
joined again when the table row arrives.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from confluent_kafka import Consumer, KafkaError, Message, TopicPartition
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from headrace.client.cluster import Cluster
from headrace.client.errors import LogError, from_kafka
from headrace.client.records import take
from headrace.client.tombstones import Tombstones
from headrace.flow.codec.codec import Decoder, TimeBounds
from headrace.flow.errors import InputReplaced, TableRepartitioned, rebuild_hint
from headrace.flow.inputs import history
from headrace.flow.rejected import DeadLetterSpool, RejectedRecord, read_rejected, rejected_record
from headrace.flow.spark_types import local_rows, struct_of
from headrace.model.declarations import Topic
from headrace.model.progress import Input

__all__ = ["RECORD_SHAPE", "TableState", "latest"]

_MEMORY_ROWS_MAX = 20_000
_FETCH_RECORDS = 10_000
_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_RESPONSE_TIMEOUT_S = 30.0
_UPDATE_TIMEOUT_S = 2.0
_LOADS_MAX = 5
_UNCOMPACTED_S = 1.0
_INTERVAL_S = (1.0, 60.0)
_KEY = T.StructType([T.StructField("key", T.BinaryType())])
RECORD_SHAPE = T.StructType(
    [
        *_KEY.fields,
        T.StructField("value", T.BinaryType()),
        T.StructField("partition", T.IntegerType(), False),
        T.StructField("offset", T.LongType(), False),
        T.StructField("timestamp", T.TimestampType(), False),
    ]
)


def latest(decoded: DataFrame, partitions: int) -> DataFrame:
    """Return the last row of each key, including deletions. The columns are ``key``, ``row`` (null for a deletion),
    ``partition``, ``logged_us`` and ``moved`` (whether the key is in several partitions).

    A value that does not fit the schema is ignored, so the previous row remains.
    """
    valid = decoded.where(F.col("reason").isNull())
    fields = ("row", "partition", "logged_us")
    if partitions == 1:
        last = valid.groupBy("key").agg(F.max_by(F.struct(*fields), "offset").alias("last"))
        return last.select("key", "last.*", F.lit(False).alias("moved"))
    by_partition = valid.groupBy("key", "partition").agg(F.max_by(F.struct(*fields), "offset").alias("last"))
    newest = F.max_by("last", F.struct("last.logged_us", "last.partition")).alias("last")
    is_moved = (F.count(F.lit(1)) > 1).alias("moved")
    return by_partition.groupBy("key").agg(newest, is_moved).select("key", "last.*", "moved")


class _Version(NamedTuple):
    """The current row of a key, with the values that order it among other rows of the key."""

    row: dict[str, Any] | None
    partition: int
    logged_us: int
    moved: bool


@dataclass(frozen=True, slots=True)
class _ReadPosition:
    """A position for ``Tombstones.missed_tombstone_reason``. Times are from the monotonic clock."""

    topic: str
    offsets: dict[int, int]
    removed_below: dict[int, int]
    complete_ms: int


class TableState:
    """``dead_sent`` has, for each partition, the offset below which all dead letters were already sent. A load does not
    send them again.
    """

    def __init__(
        self,
        spark: SparkSession,
        cluster: Cluster,
        flow: str,
        topic: Topic,
        table_input: Input,
        bounds: TimeBounds,
        dead_sent: Mapping[str, int],
    ) -> None:
        assert topic.schema is not None
        self.topic = topic
        self.log = table_input.log
        self.reached: dict[str, int] = {}
        self.frame: DataFrame
        self._dead_sent = dict(dead_sent)
        self._flow = flow
        self._partitions = len(table_input.starts)
        self._spark = spark
        self._cluster = cluster
        self._decoder = Decoder(topic, bounds)
        self._shape = struct_of(topic.schema.fields)
        self._version_shape = T.StructType(
            [
                *_KEY.fields,
                T.StructField("row", self._shape),
                T.StructField("partition", T.IntegerType()),
                T.StructField("logged_us", T.LongType()),
                T.StructField("moved", T.BooleanType()),
            ]
        )
        self._is_loaded = False
        self._frame_is_current = False
        """Whether ``frame`` includes all records that were read."""
        self._order_is_unknown = False
        """Whether the table must be loaded again to find out which row of a key is the current one."""
        self._spark_rows: DataFrame | None = None
        """The rows of a large table, which remain in Spark, in the columns of ``latest``; None for a small table."""
        self._memory_rows: dict[bytes | None, _Version] = {}
        """All rows of a small table; for a large table, the rows that changed after the load. Includes deletions if
        the topic has several partitions or rows remain in Spark.
        """
        self.dead_letters = DeadLetterSpool()
        """Invalid values that are not yet committed with a batch."""
        self._removed_below: dict[int, int] = {}
        self._complete_s = 0.0
        """When the topic was last read to its end."""
        self._interval_s = _INTERVAL_S[1]
        self._consumer: Consumer | None = None

    def refresh(self) -> None:
        """Read the topic to its end, update ``frame``, and add invalid values to ``dead_letters``."""
        if self._is_loaded:
            self._read_new_records(self._cluster)
        for _ in range(_LOADS_MAX):
            if self._is_loaded:
                break
            self._load()
        if not self._is_loaded:
            raise LogError(
                f"compaction removes deletions in table {self.log!r} faster than the table can be read: increase"
                " delete.retention.ms",
                name="TIMED_OUT",
                retriable=True,
            )

    def read_between_batches(self, stop: threading.Event) -> None:
        """Read new records if enough time has passed, so that no deletion is compacted away before it is read.

        If the table must be loaded again, which is slow, the next batch does that.
        """
        if self._is_loaded and time.monotonic() - self._complete_s >= self._interval_s:
            self._read_new_records(dataclasses.replace(self._cluster, timeout_s=_UPDATE_TIMEOUT_S), stop)

    def close(self) -> None:
        self.dead_letters.close()
        if self._consumer is not None:
            self._consumer.close()

    # The state of the log

    def _ends(self, cluster: Cluster) -> dict[str, int]:
        """Return the end offsets. Raises if the topic was replaced or repartitioned: its rows must not be joined."""
        ends = {str(number): end for number, end in cluster.ends(self.log).items()}
        if len(ends) != self._partitions:
            raise TableRepartitioned(self._flow, self.log, self._partitions, len(ends))
        table_input = self.reached or self._dead_sent
        for number, end in ends.items():
            if end < table_input.get(number, 0):
                raise InputReplaced(
                    f"flow {self._flow} has read table {self.log}/{number} up to offset {table_input[number]}, but the"
                    f" partition ends at {end}",
                    detail="the log was reset, for example by restoring an older backup",
                    hint=rebuild_hint(self._flow),
                )
        return ends

    def _tombstones(self, cluster: Cluster) -> Tombstones:
        tombstones = Tombstones.of(cluster.configs(self.log))
        lowest, highest = _INTERVAL_S
        self._interval_s = min(highest, max(lowest, tombstones.kept_ms / 10_000))
        return tombstones

    # Load

    def _load(self) -> None:
        began_s = time.monotonic()
        removed_below = self._tombstones(self._cluster).removed_below
        self._removed_below = removed_below or {}
        starts, ends = self._cluster.starts(self.log), self._ends(self._cluster)
        ranges = {number: (starts[int(number)], end) for number, end in ends.items()}
        decoded = self._decoder.decode(history(self._spark, self._cluster, self.log, ranges))
        rows = latest(decoded, self._partitions)
        if self._partitions == 1:
            rows = rows.where(F.col("row").isNotNull())
        rows = rows.localCheckpoint(eager=True)
        self._memory_rows, self._spark_rows, self._order_is_unknown, self._frame_is_current = (
            {},
            None,
            False,
            False,
        )
        if rows.count() <= _MEMORY_ROWS_MAX:
            self._put_versions(rows)
        else:
            self._spark_rows = rows
        self._add_dead_letters(decoded, ranges)
        self.reached = ends
        self._complete_s = began_s
        self._is_loaded = True
        self._read_new_records(self._cluster)
        tombstones = self._tombstones(self._cluster)
        was_slow = (time.monotonic() - began_s) * 2_000 > tombstones.kept_ms
        if tombstones.compacted and was_slow and tombstones.removed_below != removed_below:
            # Compaction might have removed a deletion after the row was read, but before the deletion was read.
            self._is_loaded = False

    def _add_dead_letters(self, decoded: DataFrame, ranges: Mapping[str, tuple[int, int]]) -> None:
        """Read invalid records again, in pieces of limited size. ``decoded`` has the records of ``ranges``."""
        committed = self.reached or self._dead_sent
        remaining = {
            partition: (max(low, committed.get(partition, low)), high)
            for partition, (low, high) in ranges.items()
        }
        size = F.coalesce(F.octet_length("value"), F.lit(0))
        (totals,) = decoded.agg(F.count_if(F.col("reason").isNotNull()), F.avg(size)).collect()
        if totals[0]:
            self.dead_letters.extend(
                read_rejected(
                    self._spark,
                    self._cluster,
                    self._decoder,
                    self.log,
                    remaining,
                    int(totals[1]),
                )
            )

    # Read new records

    def _read_new_records(self, cluster: Cluster, stop: threading.Event | None = None) -> None:
        """Read new records to the end of the topic, or until the table must be loaded again."""
        sampled_s = time.monotonic()
        ends = self._ends(cluster)
        while unread := {int(number): end for number, end in ends.items() if end > self.reached[number]}:
            with contextlib.closing(DeadLetterSpool()) as dead:
                widest_gap = self._apply_new_records(unread, dead, stop)
                if self._order_is_unknown or self._may_have_missed(cluster):
                    self._is_loaded = False
                    return
                self.dead_letters.extend(dead)
            self.reached = ends
            # A gap can be a row that compaction removed because a newer row of the key, not read yet, replaced it.
            # Records of the last second are not compacted yet, so a gap of one offset among those is the end
            # of a transaction.
            if not widest_gap or (widest_gap == 1 and time.monotonic() - self._complete_s < _UNCOMPACTED_S):
                break
            self._complete_s, sampled_s = sampled_s, time.monotonic()
            ends = self._ends(cluster)
        self._complete_s = sampled_s
        if not self._frame_is_current:
            self._update_frame()

    def _may_have_missed(self, cluster: Cluster) -> bool:
        reached = {int(number): offset for number, offset in self.reached.items()}
        position = _ReadPosition(self.log, reached, self._removed_below, int(self._complete_s * 1_000))
        now_ms = int(time.monotonic() * 1_000)
        return self._tombstones(cluster).missed_tombstone_reason(position, {}, now_ms) is not None

    def _apply_new_records(
        self, unread: dict[int, int], dead: DeadLetterSpool, stop: threading.Event | None
    ) -> int:
        """Apply new records. Returns the widest gap: the most consecutive offsets without a record."""
        if self._consumer is None:
            self._consumer = self._cluster.consumer({"fetch.wait.max.ms": 10})
        next_offsets = {number: self.reached[str(number)] for number in unread}
        self._consumer.assign(
            [TopicPartition(self.log, number, offset) for number, offset in next_offsets.items()]
        )
        unread_ends, messages = dict(unread), list[Message]()
        widest_gap = 0
        while unread_ends:
            for message in self._poll(stop):
                error, partition, offset = message.error(), message.partition() or 0, message.offset() or 0
                if error is not None and error.code() != KafkaError._PARTITION_EOF:
                    raise from_kafka(error, f"reading table {self.log!r}")
                if partition not in unread_ends:
                    continue
                end = unread_ends[partition]
                widest_gap = max(widest_gap, min(offset, end) - next_offsets[partition])
                next_offsets[partition] = offset + (error is None)
                if error is None and offset < end:
                    messages.append(message)
                if offset + (error is None) >= end:
                    del unread_ends[partition]
            if len(messages) >= _FETCH_RECORDS or not unread_ends:
                dead.extend(self._apply(messages))
                messages = []
        self._consumer.unassign()
        return widest_gap

    def _poll(self, stop: threading.Event | None) -> list[Message]:
        assert self._consumer is not None
        deadline = time.monotonic() + (_RESPONSE_TIMEOUT_S if stop is None else _UPDATE_TIMEOUT_S)
        while time.monotonic() < deadline and not (stop is not None and stop.is_set()):
            messages = take(self._consumer, _FETCH_RECORDS, 0.2)
            if messages:
                return messages
        raise LogError(f"no response for topic {self.log!r}", name="TIMED_OUT", retriable=True)

    def _apply(self, messages: list[Message]) -> list[RejectedRecord]:
        rows = [
            dict(
                zip(
                    RECORD_SHAPE.names,
                    (
                        message.key(),
                        message.value(),
                        message.partition(),
                        message.offset(),
                        _time_of(message),
                    ),
                    strict=True,
                )
            )
            for message in messages
        ]
        decoded = self._decoder.decode(local_rows(self._spark, rows, RECORD_SHAPE)).toArrow().to_pylist()
        valid = [record for record in decoded if record["reason"] is None]
        self._frame_is_current = False
        if self._spark_rows is not None and self._partitions > 1:
            self._load_versions_of(self._spark_rows, {record["key"] for record in valid})
        for record in sorted(valid, key=lambda record: (record["partition"], record["offset"])):
            self._put_version(record["key"], record["row"], record["partition"], record["logged_us"])
        if len(self._memory_rows) > _MEMORY_ROWS_MAX:
            self._merge()
        return [rejected_record(self.log, record) for record in decoded if record["reason"] is not None]

    # Order of versions

    def _put_version(
        self, key: bytes | None, row: dict[str, Any] | None, partition: int, logged_us: int
    ) -> None:
        if self._partitions == 1 and self._spark_rows is None and row is None:
            self._memory_rows.pop(key, None)
            return
        table_input = self._memory_rows.get(key)
        if table_input is None:
            self._memory_rows[key] = _Version(row, partition, logged_us, moved=False)
        elif table_input.partition == partition:
            # A row in another partition might be older than the replaced row but newer than the new row.
            self._order_is_unknown |= table_input.moved and logged_us < table_input.logged_us
            self._memory_rows[key] = _Version(row, partition, logged_us, table_input.moved)
        elif (logged_us, partition) > (table_input.logged_us, table_input.partition):
            self._memory_rows[key] = _Version(row, partition, logged_us, moved=True)
        else:
            self._memory_rows[key] = table_input._replace(moved=True)

    def _load_versions_of(self, spark_rows: DataFrame, keys: set[bytes | None]) -> None:
        """Load the Spark rows of these keys, because a row in another partition can be newer than a new record."""
        new = local_rows(self._spark, [{"key": key} for key in keys - self._memory_rows.keys()], _KEY)
        self._put_versions(spark_rows.join(F.broadcast(new), "key", "left_semi"))

    def _put_versions(self, versions: DataFrame) -> None:
        for item in versions.select("key", *_Version._fields).toArrow().to_pylist():
            key = item.pop("key")
            self._memory_rows[key] = _Version(**item)

    def _update_frame(self) -> None:
        """Update ``frame`` from the rows in this process and the rows in Spark."""
        rows = [version.row for version in self._memory_rows.values() if version.row is not None]
        self.frame = local_rows(self._spark, rows, self._shape)
        if self._spark_rows is not None:
            spark_rows = self._unchanged(self._spark_rows).where(F.col("row").isNotNull())
            self.frame = spark_rows.select("row.*").unionByName(self.frame)
        self._frame_is_current = True

    def _merge(self) -> None:
        """Merge the rows held in this process into the rows in Spark."""
        memory_rows = [
            {"key": key, **version._asdict()}
            for key, version in self._memory_rows.items()
            if version.row is not None or self._partitions > 1
        ]
        merged = local_rows(self._spark, memory_rows, self._version_shape)
        if self._spark_rows is not None:
            merged = self._unchanged(self._spark_rows).unionByName(merged)
        self._spark_rows = merged.localCheckpoint(eager=True)
        self._memory_rows = {}

    def _unchanged(self, spark_rows: DataFrame) -> DataFrame:
        keys = local_rows(self._spark, [{"key": key} for key in self._memory_rows], _KEY)
        return spark_rows.join(F.broadcast(keys), "key", "left_anti")


def _time_of(message: Message) -> datetime.datetime:
    _, timestamp_ms = message.timestamp()
    return _EPOCH + datetime.timedelta(milliseconds=max(0, timestamp_ms))
