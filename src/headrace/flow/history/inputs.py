"""Reads the inputs of a flow again. Each record gets the number of the batch that read it.

The plain-Python codec (``plain_decoder``) decodes the records. ``lateness`` computes from the events which of them were
late. The flow's own records about dead and late events are only compared with these results.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F
from pyspark.sql import types as T

from headrace.client.cluster import Cluster
from headrace.flow.codec.codec import TimeBounds, encode
from headrace.flow.compile.compiler import Compiled
from headrace.flow.compile.lineage import BATCH, coordinates, lineage_columns, trace_output, without_lineage
from headrace.flow.history.derived import TIE
from headrace.flow.history.plain_decoder import plain_decode
from headrace.flow.history.plain_encoder import plain_encode
from headrace.flow.history.progress_check import BatchIndex
from headrace.flow.inputs import history
from headrace.flow.spark_types import local_rows, struct_of
from headrace.model.declarations import Topic
from headrace.model.progress import Generation, Input
from headrace.model.schema import Schema

__all__ = ["HistoryInputs", "InputTally"]

_WATERMARKS = T.StructType([T.StructField(name, T.LongType(), False) for name in ("batch", "watermark_us")])
_STARTS = T.StructType(
    [T.StructField("partition", T.IntegerType(), False), T.StructField("start_us", T.LongType(), False)]
)
_FUNCTION_ROW = "_headrace_row"


@dataclasses.dataclass(frozen=True, slots=True)
class InputTally:
    """The records of one partition of an input in one batch."""

    records: int
    dead: int
    oldest_us: int | None
    newest_us: int | None


class HistoryInputs:
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
        self._logs = {source.topic: source for source in generation.inputs}
        self._topics = {
            topic.name: dataclasses.replace(topic, schema=schemas[topic.name]) for topic in self.flow.reads
        }
        self._numbers = {topic.name: number for number, topic in enumerate(self.flow.reads)}

    def topic(self, topic: Topic) -> Topic:
        """Return the topic with its schema, even if the app does not declare the schema."""
        return self._topics[topic.name]

    def input(self, topic: Topic) -> Input:
        """Return the topic's entry in the generation record."""
        return self._logs[topic.name]

    def empty(self, topic: Topic) -> DataFrame:
        """Return a DataFrame without rows, with the column types that the function expects."""
        return self.spark.createDataFrame([], self._row_type(topic))

    def empty_input(self, topic: Topic) -> DataFrame:
        """Return what ``rows`` returns for an input of events without records: the columns of ``empty``, and the
        coordinate columns.
        """
        coordinates_of_record = [
            T.StructField(name, T.LongType()) for name in ("partition", "offset", "batch")
        ]
        shape = T.StructType([T.StructField("row", self._row_type(topic)), *coordinates_of_record])
        return self.rows(self.spark.createDataFrame([], shape), topic)

    def _row_type(self, topic: Topic) -> T.StructType:
        schema = self.topic(topic).schema
        assert schema is not None
        return struct_of(schema.fields)

    def records(self, topic: Topic, ranges: Mapping[str, tuple[int, int]]) -> DataFrame | None:
        """Return the decoded records, each with its ``batch``; None if the ranges are empty. Unpersist after use."""
        nonempty = {number: bounds for number, bounds in ranges.items() if bounds[0] < bounds[1]}
        if not nonempty:
            return None
        log = self.input(topic).log
        raw = history(self.spark, self.cluster, log, nonempty)
        decoded = plain_decode(raw, self.topic(topic), self.bounds.future_us, batches=self._index.lookup(log))
        return decoded.persist(StorageLevel.DISK_ONLY)

    @staticmethod
    def tallies(records: DataFrame) -> dict[tuple[int, int], InputTally]:
        """Return the tallies by batch and partition, in this order."""
        grouped = records.groupBy("batch", "partition").agg(
            F.count(F.lit(1)),
            F.count_if(F.col("reason").isNotNull()),
            F.min("event_us"),
            F.max("event_us"),
        )
        columns = (column.to_pylist() for column in grouped.toArrow().columns)
        rows = sorted(zip(*columns, strict=True))
        return {(batch, partition): InputTally(*counts) for batch, partition, *counts in rows}

    def with_newest(self, records: DataFrame, before: Mapping[int, int]) -> DataFrame:
        """Add a column ``newest_us``: the newest event time of the earlier records in the partition. ``before`` has the
        newest event time before the first of these records, by partition.
        """
        earlier = Window.partitionBy("partition").orderBy("offset").rowsBetween(Window.unboundedPreceding, -1)
        start_rows = [{"partition": number, "start_us": time_us} for number, time_us in before.items()]
        starts = local_rows(self.spark, start_rows, _STARTS)
        joined = records.join(F.broadcast(starts), "partition", "left")
        newest = F.greatest(F.max("event_us").over(earlier), F.col("start_us"))
        return joined.withColumn("newest_us", newest).drop("start_us")

    def with_watermarks(self, records: DataFrame, watermarks: Mapping[int, int | None]) -> DataFrame:
        """Add a column ``watermark_us``: the watermark of the record's batch."""
        watermark_rows = [
            {"batch": batch, "watermark_us": watermark_us}
            for batch, watermark_us in watermarks.items()
            if watermark_us is not None
        ]
        frame = local_rows(self.spark, watermark_rows, _WATERMARKS)
        return records.join(F.broadcast(frame), "batch", "left")

    def rows(self, records: DataFrame, topic: Topic) -> DataFrame:
        """Return the rows for the function, with the coordinate columns (``headrace.flow.compile.lineage``), which the
        function does not see.
        """
        coordinate_columns = coordinates(self._numbers[topic.name])
        return records.where(F.col("row").isNotNull()).select(
            "row.*", *coordinate_columns, F.col("batch").alias(BATCH)
        )

    def derived(self, frames: Sequence[DataFrame]) -> DataFrame:
        """Call the function and return its rows: ``key``, ``value`` and the columns that order them.

        Rows without a key are dropped, because the flow does not write them to its topic.
        """
        rows, ties = trace_output(self.flow, self.flow.function(*without_lineage(frames)))
        order, key = lineage_columns(rows), self.flow.writes.key
        if ties and order:
            # The flow orders rows with the same coordinates by the text that Spark encodes. Python's text can differ.
            encoded = encode(rows, self._schema, key, [F.struct("*").alias(_FUNCTION_ROW)])
            rows = encoded.select(f"{_FUNCTION_ROW}.*", F.col("value").alias(TIE))
            order.append(TIE)
        return plain_encode(rows, self._schema, key, order).where(F.col("key").isNotNull())
