"""A table that a flow reads: the last row of each key, kept fresh from its changelog.

The first refresh reads the whole topic, in Spark. A small table is then held here, and given to every batch as it is.
Of a large one the rows stay in Spark; what has changed since is held here and laid over them, until both become one.
After that only what was added is read, by one consumer that stays. No event asks anybody: a batch joins with the table
as it was when the batch began, through offsets that its progress record names.

What the table holds at these offsets is a state that was. Compaction may remove a row while the topic is read, because
a newer one of its key came further on. So where records are missing, the topic is read on to the end that it has then.
And deletions expire (``headrace.client.tombstones``). So the table is read on with time, also while no batch runs, and
loaded anew where it may have missed one.

Within a partition the later record of a key counts. Rows of one key in several partitions, which is what added
partitions leave behind, are of different age by the time that the log has for them, and then by their partition.

A row that comes before its table row finds no match: an inner join leaves it out, a left join fills nulls. It is not
looked at again when the table row arrives; which of the two it shall be is said by the join.
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
from headrace.client.reading import take
from headrace.client.tombstones import Tombstones
from headrace.flow.dead_letter_spool import DeadLetterSpool
from headrace.flow.decoding import Decoder, TimeBounds
from headrace.flow.errors import InputReplaced, TableRepartitioned, rebuild_hint
from headrace.flow.inputs import history
from headrace.flow.left_out import LeftOut, read_left_out
from headrace.flow.local_rows import local_rows
from headrace.flow.types import struct_of
from headrace.model.progress import Input
from headrace.model.topic import Topic

__all__ = ["TableState", "latest"]

_FEW = 20_000
_AT_ONCE = 10_000
_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_PATIENCE_S = 30.0
_QUICK_S = 2.0
_LOADS_MAX = 5
_FRESH_S = 1.0
_INTERVAL_S = (1.0, 60.0)
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


def latest(decoded: DataFrame, partitions: int) -> DataFrame:
    """The last of each key, deletions too, as they fold: columns ``key``, ``row`` (null deletes), ``partition``,
    ``logged_us`` and ``moved``, whether the key is in several partitions.

    A value that does not fit changes nothing: the row that was there before it stays.
    """
    fits = decoded.where(F.col("reason").isNull())
    fields = ("row", "partition", "logged_us")
    if partitions == 1:
        last = fits.groupBy("key").agg(F.max_by(F.struct(*fields), "offset").alias("last"))
        return last.select("key", "last.*", F.lit(False).alias("moved"))
    each = fits.groupBy("key", "partition").agg(F.max_by(F.struct(*fields), "offset").alias("last"))
    newest = F.max_by("last", F.struct("last.logged_us", "last.partition")).alias("last")
    several = (F.count(F.lit(1)) > 1).alias("moved")
    return each.groupBy("key").agg(newest, several).select("key", "last.*", "moved")


class _Version(NamedTuple):
    """The row that counts for a key, and by what it does."""

    row: dict[str, Any] | None
    partition: int
    logged_us: int
    moved: bool


@dataclass(frozen=True, slots=True)
class _Reached:
    """A position, for ``Tombstones.why_missed``; time is that of the steady clock."""

    topic: str
    offsets: dict[int, int]
    removed_below: dict[int, int]
    complete_ms: int


class TableState:
    """``told`` is how far the dead letters of the table were sent before; a load finds those again."""

    def __init__(
        self,
        spark: SparkSession,
        cluster: Cluster,
        flow: str,
        topic: Topic,
        known: Input,
        bounds: TimeBounds,
        told: Mapping[str, int],
    ) -> None:
        assert topic.schema is not None
        self.topic = topic
        self.log = known.log
        self.reached: dict[str, int] = {}
        self.frame: DataFrame
        self._told = dict(told)
        self._flow = flow
        self._partitions = len(known.starts)
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
        self._loaded = False
        self._shown = False
        """Whether ``frame`` has all that was read."""
        self._undecided = False
        """Whether only a load can tell which row of a key counts."""
        self._kept: DataFrame | None = None
        """The rows that stay in Spark, if they are many, as ``latest`` gives them."""
        self._held: dict[bytes | None, _Version] = {}
        """All rows, if they are few; else those that have changed since. With deletions, where the topic has several
        partitions or rows are kept in Spark."""
        self.dead_letters = DeadLetterSpool()
        """Invalid values that no batch has committed yet."""
        self._removed_below: dict[int, int] = {}
        self._complete_s = 0.0
        """When the topic was last read to its end."""
        self._interval_s = _INTERVAL_S[1]
        self._consumer: Consumer | None = None

    def refresh(self) -> None:
        """Read the topic to its end: update ``frame``, and add invalid values to ``dead_letters``."""
        if self._loaded:
            self._read_on(self._cluster)
        for _ in range(_LOADS_MAX):
            if self._loaded:
                break
            self._load()
        if not self._loaded:
            raise LogError(
                f"deletions in table {self.log!r} are removed faster than the table can be read: raise"
                " delete.retention.ms",
                name="TIMED_OUT",
                retriable=True,
            )

    def touch(self, stop: threading.Event) -> None:
        """Read what was added, if that was not done for a while: often enough that no deletion expires before. What
        takes long, which is loading the table, is left to the next batch.
        """
        if self._loaded and time.monotonic() - self._complete_s >= self._interval_s:
            self._read_on(dataclasses.replace(self._cluster, timeout_s=_QUICK_S), stop)

    def close(self) -> None:
        self.dead_letters.close()
        if self._consumer is not None:
            self._consumer.close()

    # What the log says

    def _ends(self, cluster: Cluster) -> dict[str, int]:
        """Raises if the topic is not what it was: no row may be joined then."""
        ends = {str(number): end for number, end in cluster.ends(self.log).items()}
        if len(ends) != self._partitions:
            raise TableRepartitioned(self._flow, self.log, self._partitions, len(ends))
        known = self.reached or self._told
        for number, end in ends.items():
            if end < known.get(number, 0):
                raise InputReplaced(
                    f"flow {self._flow} has read table {self.log}/{number} up to {known[number]}, and it ends at {end}",
                    detail="the log was set back, for example from an older backup",
                    hint=rebuild_hint(self._flow),
                )
        return ends

    def _tombstones(self, cluster: Cluster) -> Tombstones:
        found = Tombstones.of(cluster.configs(self.log))
        lowest, highest = _INTERVAL_S
        self._interval_s = min(highest, max(lowest, found.kept_ms / 10_000))
        return found

    # Reading all of it

    def _load(self) -> None:
        began = time.monotonic()
        removed_below = self._tombstones(self._cluster).removed_below
        self._removed_below = removed_below or {}
        starts, ends = self._cluster.starts(self.log), self._ends(self._cluster)
        ranges = {number: (starts[int(number)], end) for number, end in ends.items()}
        decoded = self._decoder.decode(history(self._spark, self._cluster, self.log, ranges))
        rows = latest(decoded, self._partitions)
        if self._partitions == 1:
            rows = rows.where(F.col("row").isNotNull())
        rows = rows.localCheckpoint(eager=True)
        self._held, self._kept, self._undecided, self._shown = {}, None, False, False
        if rows.count() <= _FEW:
            self._hold_versions(rows)
        else:
            self._kept = rows
        self._add_dead_letters(decoded, ranges)
        self.reached = ends
        self._complete_s = began
        self._loaded = True
        self._read_on(self._cluster)
        now = self._tombstones(self._cluster)
        was_slow = (time.monotonic() - began) * 2_000 > now.kept_ms
        if now.compacted and was_slow and now.removed_below != removed_below:
            # A deletion may have been removed after the row that it deletes was read.
            self._loaded = False

    def _add_dead_letters(self, decoded: DataFrame, ranges: Mapping[str, tuple[int, int]]) -> None:
        """Reads them again in pieces of limited bytes. ``decoded`` has the records of ``ranges``."""
        committed = self.reached or self._told
        remaining = {
            partition: (max(low, committed.get(partition, low)), high)
            for partition, (low, high) in ranges.items()
        }
        size = F.coalesce(F.octet_length("value"), F.lit(0))
        (found,) = decoded.agg(F.count_if(F.col("reason").isNotNull()), F.avg(size)).collect()
        if found[0]:
            never = F.lit(None).cast("long")
            self.dead_letters.extend(
                read_left_out(
                    self._spark, self._cluster, self._decoder, self.log, remaining, never, int(found[1])
                )
            )

    # Reading what was added

    def _read_on(self, cluster: Cluster, stop: threading.Event | None = None) -> None:
        """To the topic's end, or until it turns out that the table must be loaded anew."""
        asked = time.monotonic()
        ends = self._ends(cluster)
        while behind := {int(one): end for one, end in ends.items() if end > self.reached[one]}:
            with contextlib.closing(DeadLetterSpool()) as dead:
                widest_gap = self._apply_added(behind, dead, stop)
                if self._undecided or self._may_have_missed(cluster):
                    self._loaded = False
                    return
                self.dead_letters.extend(dead)
            self.reached = ends
            # A gap may be a row that a newer one has replaced, behind what was read. Between records of the last
            # moment, which are not compacted yet, it is the end of a transaction.
            if not widest_gap or (widest_gap == 1 and time.monotonic() - self._complete_s < _FRESH_S):
                break
            self._complete_s, asked = asked, time.monotonic()
            ends = self._ends(cluster)
        self._complete_s = asked
        if not self._shown:
            self._show()

    def _may_have_missed(self, cluster: Cluster) -> bool:
        reached = {int(number): at for number, at in self.reached.items()}
        position = _Reached(self.log, reached, self._removed_below, int(self._complete_s * 1_000))
        now_ms = int(time.monotonic() * 1_000)
        return self._tombstones(cluster).why_missed(position, {}, now_ms) is not None

    def _apply_added(
        self, behind: dict[int, int], dead: DeadLetterSpool, stop: threading.Event | None
    ) -> int:
        """Gives how many offsets in a row had no record."""
        if self._consumer is None:
            self._consumer = self._cluster.consumer({"fetch.wait.max.ms": 10})
        following = {number: self.reached[str(number)] for number in behind}
        self._consumer.assign([TopicPartition(self.log, number, at) for number, at in following.items()])
        wanted, some = dict(behind), list[Message]()
        widest_gap = 0
        while wanted:
            for message in self._take(stop):
                error, partition, offset = message.error(), message.partition() or 0, message.offset() or 0
                if error is not None and error.code() != KafkaError._PARTITION_EOF:
                    raise from_kafka(error, f"reading table {self.log!r}")
                if partition not in wanted:
                    continue
                end = wanted[partition]
                widest_gap = max(widest_gap, min(offset, end) - following[partition])
                following[partition] = offset + (error is None)
                if error is None and offset < end:
                    some.append(message)
                if offset + (error is None) >= end:
                    del wanted[partition]
            if len(some) >= _AT_ONCE or not wanted:
                dead.extend(self._apply(some))
                some = []
        self._consumer.unassign()
        return widest_gap

    def _take(self, stop: threading.Event | None) -> list[Message]:
        assert self._consumer is not None
        deadline = time.monotonic() + (_PATIENCE_S if stop is None else _QUICK_S)
        while time.monotonic() < deadline and not (stop is not None and stop.is_set()):
            found = take(self._consumer, _AT_ONCE, 0.2)
            if found:
                return found
        raise LogError(f"topic {self.log!r} did not answer", name="TIMED_OUT", retriable=True)

    def _apply(self, messages: list[Message]) -> list[LeftOut]:
        rows = [
            dict(
                zip(
                    _ADDED.names,
                    (one.key(), one.value(), one.partition(), one.offset(), _time_of(one)),
                    strict=True,
                )
            )
            for one in messages
        ]
        decoded = self._decoder.decode(local_rows(self._spark, rows, _ADDED)).toArrow().to_pylist()
        fits = [one for one in decoded if one["reason"] is None]
        self._shown = False
        if self._kept is not None and self._partitions > 1:
            self._hold_kept(self._kept, {one["key"] for one in fits})
        for one in sorted(fits, key=lambda record: (record["partition"], record["offset"])):
            self._hold(one["key"], one["row"], one["partition"], one["logged_us"])
        if len(self._held) > _FEW:
            self._merge()
        return [_side(self.log, one) for one in decoded if one["reason"] is not None]

    # Which row counts

    def _hold(self, key: bytes | None, row: dict[str, Any] | None, partition: int, logged_us: int) -> None:
        if self._partitions == 1 and self._kept is None and row is None:
            self._held.pop(key, None)
            return
        known = self._held.get(key)
        if known is None:
            self._held[key] = _Version(row, partition, logged_us, moved=False)
        elif known.partition == partition:
            # It replaces the row, and may then be older than one in another partition that the row was newer than.
            self._undecided |= known.moved and logged_us < known.logged_us
            self._held[key] = _Version(row, partition, logged_us, known.moved)
        elif (logged_us, partition) > (known.logged_us, known.partition):
            self._held[key] = _Version(row, partition, logged_us, moved=True)
        else:
            self._held[key] = known._replace(moved=True)

    def _hold_kept(self, kept: DataFrame, keys: set[bytes | None]) -> None:
        """A record may be in another partition than the row of its key, and older: then the row stays."""
        new = local_rows(self._spark, [{"key": key} for key in keys - self._held.keys()], _KEY)
        self._hold_versions(kept.join(F.broadcast(new), "key", "left_semi"))

    def _hold_versions(self, versions: DataFrame) -> None:
        for one in versions.select("key", *_Version._fields).toArrow().to_pylist():
            key = one.pop("key")
            self._held[key] = _Version(**one)

    def _show(self) -> None:
        """Make ``frame`` of what is held and kept."""
        rows = [one.row for one in self._held.values() if one.row is not None]
        self.frame = local_rows(self._spark, rows, self._shape)
        if self._kept is not None:
            kept = self._unchanged(self._kept).where(F.col("row").isNotNull())
            self.frame = kept.select("row.*").unionByName(self.frame)
        self._shown = True

    def _merge(self) -> None:
        """What is held goes to what stays in Spark."""
        held = [
            {"key": key, **one._asdict()}
            for key, one in self._held.items()
            if one.row is not None or self._partitions > 1
        ]
        merged = local_rows(self._spark, held, self._version_shape)
        if self._kept is not None:
            merged = self._unchanged(self._kept).unionByName(merged)
        self._kept = merged.localCheckpoint(eager=True)
        self._held = {}

    def _unchanged(self, kept: DataFrame) -> DataFrame:
        keys = local_rows(self._spark, [{"key": key} for key in self._held], _KEY)
        return kept.join(F.broadcast(keys), "key", "left_anti")


def _time_of(message: Message) -> datetime.datetime:
    _, stamp_ms = message.timestamp()
    return _EPOCH + datetime.timedelta(milliseconds=max(0, stamp_ms))


def _side(log: str, record: dict[str, Any]) -> LeftOut:
    names = ("partition", "offset", "key", "value", "reason", "event_us")
    return LeftOut(log, *(record[name] for name in names))
