"""The inputs of a flow, read again as its batches have read them: decoded independently, each with its batch.

Records are decoded by the plain-Python codec (``headrace.flow.plain_decoder``), and which of them were late follows
from the events (``headrace.flow.lateness``). What the running flow has noted about either is compared, and not used.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from headrace.client.cluster import Cluster
from headrace.flow.batch_index import BatchIndex
from headrace.flow.compiled import Compiled
from headrace.flow.decoding import TimeBounds
from headrace.flow.derived import TIE
from headrace.flow.encoding import encode
from headrace.flow.inputs import history
from headrace.flow.lineage import BATCH, coordinates, lineage_columns, trace_output, without_lineage
from headrace.flow.local_rows import local_rows
from headrace.flow.plain_decoder import decode_plainly
from headrace.flow.plain_encoder import encode_plainly
from headrace.flow.types import struct_of
from headrace.model.progress import Generation, Input
from headrace.model.schema import Schema
from headrace.model.topic import Topic

__all__ = ["InputTally", "Rereading"]

_WATERMARKS = T.StructType([T.StructField(name, T.LongType(), False) for name in ("batch", "watermark_us")])
_FUNCTION_ROW = "_headrace_row"


@dataclasses.dataclass(frozen=True, slots=True)
class InputTally:
    """What one batch has of one input."""

    records: int
    dead: int
    oldest_us: int | None
    newest_us: int | None


class Rereading:
    def __init__(
        self,
        spark: SparkSession,
        cluster: Cluster,
        compiled: Compiled,
        schemas: Mapping[str, Schema],
        generation: Generation,
        index: BatchIndex,
        bounds: TimeBounds,
    ) -> None:
        self.spark = spark
        self.cluster = cluster
        self.bounds = bounds
        self.flow = compiled.flow
        self._schema = compiled.schema
        self._index = index
        self._logs = {one.topic: one for one in generation.inputs}
        self._topics = {
            topic.name: dataclasses.replace(topic, schema=schemas[topic.name]) for topic in self.flow.reads
        }
        self._numbers = {topic.name: number for number, topic in enumerate(self.flow.reads)}

    def topic(self, topic: Topic) -> Topic:
        """With its schema, also where only the flow that writes it knows that."""
        return self._topics[topic.name]

    def input(self, topic: Topic) -> Input:
        """What the generation noted of it."""
        return self._logs[topic.name]

    def empty(self, topic: Topic) -> DataFrame:
        """A frame of the types that the function expects, without rows."""
        return self.spark.createDataFrame([], self._shape(topic))

    def empty_input(self, topic: Topic) -> DataFrame:
        """The same of an input of events, with the coordinates that the function does not see."""
        places = [T.StructField(name, T.LongType()) for name in ("partition", "offset", "batch")]
        shape = T.StructType([T.StructField("row", self._shape(topic)), *places])
        return self.rows(self.spark.createDataFrame([], shape), topic)

    def _shape(self, topic: Topic) -> T.StructType:
        schema = self.topic(topic).schema
        assert schema is not None
        return struct_of(schema.fields)

    def records(self, topic: Topic, ranges: Mapping[str, tuple[int, int]]) -> DataFrame | None:
        """Decoded, each with its ``batch``; on disk until they are unpersisted. None where there is nothing to read."""
        some = {number: bounds for number, bounds in ranges.items() if bounds[0] < bounds[1]}
        if not some:
            return None
        log = self.input(topic).log
        raw = history(self.spark, self.cluster, log, some)
        decoded = decode_plainly(
            raw, self.topic(topic), self.bounds.future_us, batches=self._index.lookup(log)
        )
        return decoded.persist(StorageLevel.DISK_ONLY)

    @staticmethod
    def tallies(records: DataFrame) -> dict[int, InputTally]:
        """By batch."""
        found = records.groupBy("batch").agg(
            F.count(F.lit(1)),
            F.count_if(F.col("reason").isNotNull()),
            F.min("event_us"),
            F.max("event_us"),
        )
        columns = (column.to_pylist() for column in found.toArrow().columns)
        return {batch: InputTally(*told) for batch, *told in zip(*columns, strict=True)}

    def mark_late(self, records: DataFrame, watermarks: Mapping[int, int | None]) -> DataFrame:
        """With a column ``late``: whether the event is older than the watermark of its batch."""
        known = [{"batch": batch, "watermark_us": at} for batch, at in watermarks.items() if at is not None]
        frame = local_rows(self.spark, known, _WATERMARKS)
        joined = records.join(F.broadcast(frame), "batch", "left")
        late = F.coalesce(F.col("event_us") < F.col("watermark_us"), F.lit(False))
        return joined.withColumn("late", late).drop("watermark_us")

    def rows(self, records: DataFrame, topic: Topic) -> DataFrame:
        """What the function sees, with the coordinates that it does not see."""
        at = coordinates(self._numbers[topic.name])
        return records.where(F.col("row").isNotNull()).select("row.*", *at, F.col("batch").alias(BATCH))

    def derived(self, frames: Sequence[DataFrame]) -> DataFrame:
        """What the function makes of its inputs: ``key``, ``value``, and the columns that give their order. A row
        without a key has no place in a topic.
        """
        rows, ties = trace_output(self.flow, self.flow.function(*without_lineage(frames)))
        order, key = lineage_columns(rows), self.flow.writes.key
        if ties and order:
            # The flow orders such rows by the text that Spark writes of them, and Python spells some values otherwise.
            written = encode(rows, self._schema, key, [F.struct("*").alias(_FUNCTION_ROW)])
            rows = written.select(f"{_FUNCTION_ROW}.*", F.col("value").alias(TIE))
            order.append(TIE)
        return encode_plainly(rows, self._schema, key, order).where(F.col("key").isNotNull())
