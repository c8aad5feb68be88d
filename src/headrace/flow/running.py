"""A flow that runs: Spark's streaming query, and what happens to each of its batches.

A flow without tables is one plan, from its topics to keys and values, that Spark runs batch by batch with its own
state. A flow that reads tables keeps no state: its function is called for each batch, with the tables as they are at
that moment, and the moment goes into the progress record.
"""

from __future__ import annotations

import contextlib
import threading
import time
from typing import Any

import msgspec
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from headrace.app import App
from headrace.client.cluster import Cluster
from headrace.flow.batch import Counts, Made, SideRow, commit_batch, ranges_of
from headrace.flow.checkpoint import Checkpoint
from headrace.flow.compiled import Compiled
from headrace.flow.decoding import Decoder
from headrace.flow.encoding import encode
from headrace.flow.errors import CheckpointLost, rebuild_hint
from headrace.flow.failures import heals
from headrace.flow.inputs import counted, counts_of, history, live, observed, tallied
from headrace.flow.opening import Opened, last_progress
from headrace.flow.options import FlowOptions
from headrace.flow.plan_text import last_execution, plan_text
from headrace.flow.tables import TableState
from headrace.flow.watermark import WatermarkCell
from headrace.flow.writer import Writer
from headrace.model.progress import Ranges
from headrace.model.schema import Schema
from headrace.model.topic import Topic

__all__ = ["Running"]

_TOO_LARGE = 2
_FINISH_S = 20
_one_at_a_time = threading.Lock()


class _Stopping(Exception):
    """A batch that began when its flow had been told to stop; the next run has it."""


class Running:
    """One run of a flow, from its start to its first error or its stop."""

    def __init__(
        self,
        spark: SparkSession,
        cluster: Cluster,
        app: App,
        compiled: Compiled,
        schemas: dict[str, Schema],
        writer: Writer,
        opened: Opened,
        settings: FlowOptions,
        rows: int,
    ) -> None:
        self.opened = opened
        self.error: BaseException | None = None
        self.took_ms: float | None = None
        """The last batch, from when its plan was there to its commit."""
        self.too_large = False
        """Whether the last batch had far more bytes than it may: then records have grown, and fewer fit a batch."""
        self._spark = spark
        self._cluster = cluster
        self._app = app
        self._compiled = compiled
        self._flow = compiled.flow
        self._schemas = schemas
        self._writer = writer
        self._settings = settings
        self._rows = rows
        self._logs = {one.topic: one for one in opened.generation.inputs}
        location = settings.checkpoint_of(self._flow.name, opened.generation.checkpoint)
        self._checkpoint = Checkpoint(spark, location)
        self._cell = WatermarkCell(spark)
        self._started = threading.Event()
        self._busy = threading.Lock()
        self._stopping = threading.Event()
        self._tables = [self._table(topic) for topic in self._flow.tables]
        self._decoders = {
            topic.name: Decoder(self._with_schema(topic), settings.bounds) for topic in self._flow.streams
        }
        self._query: StreamingQuery | None = None
        self._with_tables: DataFrame | None = None
        """What the function made of the last batch, where it is called for each."""

    @property
    def query(self) -> StreamingQuery:
        assert self._query is not None, "it runs, between start and close"
        return self._query

    def start(self) -> None:
        last = self.opened.last
        if last is not None:
            self._cell.set(last.watermark_us if self.opened.will_repeat else last.next_watermark_us)
        frame = self._raw(self._flow.streams[0]) if self._tables else self._planned()
        output = frame.writeStream.queryName(f"{self._flow.name}.g{self.opened.generation.generation}")
        ready = (
            output.outputMode(self._compiled.mode)
            .option("checkpointLocation", self._checkpoint.location)
            .trigger(processingTime=f"{self._settings.trigger_ms} milliseconds")
            .foreachBatch(self._batch)
        )
        # A batch without data can only let go of old state or, where rows are appended, send what is complete. It is a
        # setting of the session, which a query takes along when it starts.
        empty_batches = self._compiled.stateful and self._compiled.mode == "append"
        with _one_at_a_time:
            self._spark.conf.set("spark.sql.streaming.noDataMicroBatches.enabled", str(empty_batches).lower())
            self._query = ready.start()
        self._started.set()

    def look(self, stop: threading.Event) -> None:
        """Between batches tables are read on, so that no deletion in them expires before it is read."""
        if not self._tables or not self._busy.acquire(blocking=False):
            return
        try:
            for table in self._tables:
                table.touch(stop)
        except Exception as error:
            # What heals by itself, the next batch meets as well.
            if heals(error):
                return
            self.error = error
        finally:
            self._busy.release()
        if self.error is not None:
            self.stop()

    def stop(self) -> None:
        """Between batches if that is soon, else in the middle of one, which then runs again."""
        self._stopping.set()
        if self._busy.acquire(timeout=_FINISH_S):
            self._busy.release()
        self.query.stop()

    def wait_for_the_end(self) -> None:
        """A query that is no longer active may still have its name, for a moment: the next one could not have it."""
        with contextlib.suppress(PySparkException):
            self.query.awaitTermination(_FINISH_S)

    def close(self) -> None:
        """In the JVM the query has the function that it calls for a batch, which is a method of this object. If this
        object kept the query, neither side could ever clear any of it away.
        """
        for table in self._tables:
            table.close()
        self._query = self._with_tables = None

    def plan(self, chars_max: int) -> str | None:
        """Of the last batch."""
        if not self._tables:
            return plan_text(self._spark, last_execution(self.query), chars_max)
        rows: Any = self._with_tables
        return None if rows is None else plan_text(self._spark, rows._jdf.queryExecution(), chars_max)

    def _with_schema(self, topic: Topic) -> Topic:
        return Topic(
            topic.name,
            self._schemas[topic.name],
            topic.key,
            topic.time,
            topic.late,
            topic.kind,
            topic.partitions,
        )

    def _table(self, topic: Topic) -> TableState:
        known, last = self._logs[topic.name], self.opened.last
        told = last.tables.get(known.log, {}) if last else {}
        return TableState(
            self._spark,
            self._cluster,
            self._flow.name,
            self._with_schema(topic),
            known,
            self._settings.bounds,
            told,
        )

    def _raw(self, topic: Topic) -> DataFrame:
        known = self._logs[topic.name]
        return live(self._spark, self._cluster, known.log, known.starts, self._rows)

    def _planned(self) -> DataFrame:
        frames = []
        for at, topic in enumerate(self._flow.reads):
            shaped = self._with_schema(topic)
            decoded = self._decoders[topic.name].decode(self._raw(topic))
            seen = observed(decoded, f"in{at}", self._cell.column)
            frames.append(counted(seen, shaped, F.col("late"), streaming=True))
        return self._encoded(self._flow.function(*frames))

    def _encoded(self, rows: DataFrame) -> DataFrame:
        return encode(rows, self._compiled.schema, self._flow.writes.key)

    def _batch(self, frame: DataFrame, number: int) -> None:
        """Called by Spark; what it raises ends the query, and is kept as it was raised."""
        try:
            self._started.wait()
            with self._busy:
                # One that begins now has to fail, or Spark would note it as done; and not to wait, since Spark waits
                # for it when it stops.
                if self._stopping.is_set():
                    raise _Stopping
                began = time.monotonic()
                self._commit(frame, number)
                self.took_ms = round((time.monotonic() - began) * 1_000, 1)
        except _Stopping:
            raise
        except BaseException as error:
            self.error = error
            raise

    def _commit(self, frame: DataFrame, number: int) -> None:
        last = self.opened.last
        if last is not None and number <= last.batch:
            if self._compiled.stateful:
                frame.write.format("noop").mode("append").save()
            self._cell.set(last.next_watermark_us)
            return
        watermark_us = self._cell.get()
        planned = self._checkpoint.planned_offsets(number)
        if planned is None:
            raise CheckpointLost(
                f"the checkpoint of flow {self._flow.name} at {self._checkpoint.location} is without batch {number},"
                " which runs now",
                detail=last_progress(self.opened.generation, last),
                hint=f"nothing else may change it while the flow runs; {rebuild_hint(self._flow.name)}",
            )
        inputs = ranges_of(self.opened, planned)
        if self._tables:
            made = self._made_with_tables(frame, number, inputs, watermark_us)
        else:
            made = self._made(frame, number, inputs, watermark_us)
        if not made.keys and not _advances(inputs):
            return
        self.opened.last = commit_batch(self._cluster, self._writer, self._flow, self.opened, made)
        self._cell.set(self.opened.last.next_watermark_us)
        size = sum(one.bytes for one in made.counts.values())
        self.too_large = size > _TOO_LARGE * self._settings.max_bytes

    def _made(self, frame: DataFrame, number: int, inputs: Ranges, watermark_us: int | None) -> Made:
        rows = frame.toArrow()
        metrics = self._metrics()
        counts = {
            topic.name: self._counts(metrics[f"in{at}"], topic, inputs)
            for at, topic in enumerate(self._flow.reads)
        }
        state_rows, state_bytes = self._state()
        return Made(
            number=number,
            keys=rows.column("key").to_pylist(),
            values=rows.column("value").to_pylist(),
            counts=counts,
            inputs=inputs,
            tables={},
            sides=self._sides(counts),
            watermark_us=watermark_us,
            state_rows=state_rows,
            state_bytes=state_bytes,
        )

    def _made_with_tables(
        self, raw: DataFrame, number: int, inputs: Ranges, watermark_us: int | None
    ) -> Made:
        stream = self._flow.streams[0]
        shaped = self._with_schema(stream)
        observation = Observation()
        decoded = self._decoders[stream.name].decode(raw)
        seen = observed(decoded, observation, self._cell.column)
        dead: list[SideRow] = []
        for state in self._tables:
            dead += state.refresh()
        rows_of = {state.topic.name: state.frame for state in self._tables}
        rows_of[stream.name] = counted(seen, shaped, F.col("late"), streaming=False)
        frames = [rows_of[topic.name] for topic in self._flow.reads]
        self._with_tables = self._encoded(self._flow.function(*frames))
        rows = self._with_tables.toArrow()
        counts = {stream.name: self._counts(counts_of(observation), stream, inputs)}
        return Made(
            number=number,
            keys=rows.column("key").to_pylist(),
            values=rows.column("value").to_pylist(),
            counts=counts,
            inputs=inputs,
            tables={state.log: state.reached for state in self._tables},
            sides=[*self._sides(counts), *dead],
            watermark_us=watermark_us,
            table_dead=len(dead),
        )

    def _sides(self, counts: dict[str, Counts]) -> list[SideRow]:
        logs = {topic.name: self._logs[topic.name].log for topic in self._flow.streams}
        return [SideRow.of(logs[name], told) for name, one in counts.items() for told in one.aside]

    def _counts(self, told: dict[str, Any], topic: Topic, inputs: Ranges) -> Counts:
        """What is late or dead is kept in any case, and once: where the counts cannot be right, the input is read
        for itself.
        """
        log = self._logs[topic.name].log
        ranges = inputs.get(log, {})
        offsets = sum(high - low for low, high in ranges.values())
        if not offsets:
            return Counts()
        found = Counts.if_right(told, offsets)
        if found is not None:
            return found
        decoded = self._decoders[topic.name].decode(history(self._spark, self._cluster, log, ranges))
        return Counts.of(tallied(decoded, self._cell.column))

    def _metrics(self) -> dict[str, dict[str, Any]]:
        """What was counted on the way, from the plan that has just run."""
        query: Any = self.query._jsq
        metrics = query.streamingQuery().lastExecution().observedMetrics()
        names = [f"in{at}" for at in range(len(self._flow.reads))]
        return {name: msgspec.json.decode(metrics.apply(name).json()) for name in names}

    def _state(self) -> tuple[int, int]:
        """As of the batch before; Spark tells of one when it is over."""
        if not self._compiled.stateful:
            return 0, 0
        told = self.query.lastProgress
        operators = told.stateOperators if told else []
        return sum(one.numRowsTotal for one in operators), sum(one.memoryUsedBytes for one in operators)


def _advances(inputs: Ranges) -> bool:
    return any(low < high for ranges in inputs.values() for low, high in ranges.values())
