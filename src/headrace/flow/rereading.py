"""The inputs of a flow, read again: decoded as the running flow decodes them, without those that were late.

What is late was decided once, by the watermark of that moment, and is noted in ``<flow>.late``; here the notes are
followed, and no watermark is asked. What does not fit is found by decoding, as it was the first time.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from headrace.client.cluster import Cluster
from headrace.flow.compiled import Compiled
from headrace.flow.decoding import TimeBounds, decode
from headrace.flow.encoding import encode
from headrace.flow.inputs import counted, history
from headrace.flow.types import struct_of
from headrace.model.progress import Batch, Generation, Input
from headrace.model.schema import Schema
from headrace.model.topic import Topic

__all__ = ["Counts", "Rereading", "counting"]

_NOTE = "topic string, partition int, offset long, generation int, batch long"
_LATE_BROADCAST_MAX = 1_000_000
_WAS_LATE = "was_late"


@dataclasses.dataclass(slots=True)
class Counts:
    """Records that were read, of these those that were left out, and rows that were made of the others."""

    records: int = 0
    dead: int = 0
    late: int = 0
    rows: int = 0

    def add(self, told: Mapping[str, int]) -> None:
        self.records += told["records"]
        self.dead += told["dead"]
        self.late += told["late"]


def counting() -> list[Column]:
    """Of records as ``Rereading.marked`` gives them."""
    return [
        F.count(F.lit(1)).alias("records"),
        F.count_if(F.col("reason").isNotNull()).alias("dead"),
        F.count_if(F.col("row").isNotNull() & F.col(_WAS_LATE)).alias("late"),
    ]


class Rereading:
    def __init__(
        self,
        spark: SparkSession,
        cluster: Cluster,
        compiled: Compiled,
        schemas: Mapping[str, Schema],
        generation: Generation,
        through: Batch,
        bounds: TimeBounds,
    ) -> None:
        self.spark = spark
        self.cluster = cluster
        self.bounds = bounds
        self.flow = compiled.flow
        self._schema = compiled.schema
        self._logs = {one.topic: one for one in generation.inputs}
        self._topics = {
            topic.name: dataclasses.replace(topic, schema=schemas[topic.name]) for topic in self.flow.reads
        }
        self._late = self._noted_as_late(generation, through)

    def topic(self, topic: Topic) -> Topic:
        """With its schema, also where only the flow that writes it knows that."""
        return self._topics[topic.name]

    def input(self, topic: Topic) -> Input:
        """What the generation noted of it."""
        return self._logs[topic.name]

    def empty(self, topic: Topic) -> DataFrame:
        schema = self.topic(topic).schema
        assert schema is not None
        return self.spark.createDataFrame([], struct_of(schema.fields))

    def marked(self, topic: Topic, ranges: Mapping[str, tuple[int, int]]) -> DataFrame | None:
        """Decoded records, those that were late with a mark; None where there is nothing to read."""
        some = {number: bounds for number, bounds in ranges.items() if bounds[0] < bounds[1]}
        if not some:
            return None
        raw = history(self.spark, self.cluster, self.input(topic).log, some)
        decoded = decode(raw, self.topic(topic), self.bounds).drop("key", "value")
        if self._late is None:
            return decoded.withColumn(_WAS_LATE, F.lit(False))
        places = self._late.where(F.col("topic") == self.input(topic).log).drop("topic")
        joined = decoded.join(places, ["partition", "offset"], "left")
        return joined.withColumn(_WAS_LATE, F.col(_WAS_LATE).isNotNull())

    def _noted_as_late(self, generation: Generation, through: Batch) -> DataFrame | None:
        if not through.totals.late:
            return None
        log = self.flow.late_topic
        starts, ends = self.cluster.starts(log), self.cluster.ends(log)
        notes = history(self.spark, self.cluster, log, {str(one): (starts[one], ends[one]) for one in ends})
        told = notes.select(F.from_json(F.col("value").cast("string"), _NOTE).alias("note")).select("note.*")
        mine = (F.col("generation") == generation.generation) & (F.col("batch") <= through.batch)
        places = (
            told.where(mine)
            .select("topic", "partition", "offset")
            .distinct()
            .withColumn(_WAS_LATE, F.lit(True))
        )
        return F.broadcast(places) if through.totals.late <= _LATE_BROADCAST_MAX else places

    def rows(self, marked: DataFrame, topic: Topic) -> DataFrame:
        """What the function sees."""
        return counted(marked, self.topic(topic), F.col(_WAS_LATE), streaming=False)

    def derived(self, frames: list[DataFrame]) -> DataFrame:
        """What the function makes of its inputs, as keys and values; rows without a key have no place in a topic."""
        rows = encode(self.flow.function(*frames), self._schema, self.flow.writes.key)
        return rows.where(F.col("key").isNotNull())
