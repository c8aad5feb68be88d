"""A flow that runs: Spark's streaming query, and what happens to each of its batches.

A flow without tables is one plan, from its topics to keys and values, that Spark runs batch by batch with its own
state. A flow that reads tables keeps no state: its function is called for each batch, with the tables as they are at
that moment, and the moment goes into the progress record.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import secrets
import threading
import time
from collections.abc import Sequence
from typing import Any

import msgspec
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from headrace.app import App
from headrace.client.cluster import Cluster
from headrace.flow.batch import BatchResult, Counts, Miscounted, commit_batch, ranges_of
from headrace.flow.batch_rows import BatchRows, RowCollector
from headrace.flow.checkpoint import Checkpoint
from headrace.flow.checkpoint_sync import CheckpointSync
from headrace.flow.compiled import Compiled
from headrace.flow.decoding import Decoder
from headrace.flow.encoding import encode
from headrace.flow.errors import CheckpointLost, rebuild_hint
from headrace.flow.failures import heals
from headrace.flow.input_counter import InputCounter
from headrace.flow.inputs import counted, counts_of, live, observed
from headrace.flow.lineage import coordinates, lineage_columns, trace
from headrace.flow.opening import Opened, next_offsets
from headrace.flow.options import FlowOptions
from headrace.flow.output_guard import OutputGuard
from headrace.flow.plan_text import last_execution, plan_text
from headrace.flow.resumption import cut_plan, last_progress
from headrace.flow.tables import TableState
from headrace.flow.watermark import WatermarkCell
from headrace.flow.writer import Writer
from headrace.model.progress import Ranges
from headrace.model.schema import Schema
from headrace.model.topic import Topic

__all__ = ["Running"]

_TOO_LARGE = 2
_HELD = 2
"""How many times the bytes of a batch's input its rows may have, to come over at once."""
_FINISH_S = 20
_CHECK = "spark.sql.streaming.unsupportedOperationCheck"
_RUN = "run-"
"""Checkpoints of flows without state, one for each run."""
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
        run = settings.checkpoint_of(self._flow.name, f"{_RUN}{secrets.token_hex(6)}")
        self._checkpoint = Checkpoint(spark, opened.checkpoint if compiled.stateful else run)
        self._sync = CheckpointSync(self._checkpoint.location, settings.fsync) if compiled.stateful else None
        self._cell = WatermarkCell(spark)
        self._guard = OutputGuard(spark)
        self._collector = RowCollector(self._guard, _HELD * settings.max_bytes, ties=compiled.ties)
        self._observation = Observation()
        self._started = threading.Event()
        self._busy = threading.Lock()
        self._stopping = threading.Event()
        self._tables = [self._table(topic) for topic in self._flow.tables]
        self._decoders = {
            topic.name: Decoder(self._with_schema(topic), settings.bounds) for topic in self._flow.streams
        }
        logs = {topic.name: self._logs[topic.name].log for topic in self._flow.streams}
        self._counter = InputCounter(spark, cluster, self._decoders, logs, self._cell.column)
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
        self._prepare_checkpoint()
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
            # Checked when the flow was compiled. What is added to the plan since, a sort within a batch so that the
            # first of several duplicates is kept, is not for users, and refused.
            self._spark.conf.set(_CHECK, "false")
            try:
                self._query = ready.start()
            finally:
                self._spark.conf.unset(_CHECK)
        self._started.set()

    def _prepare_checkpoint(self) -> None:
        """A flow without state needs nothing but the progress in the log: each of its runs has a checkpoint of its
        own.
        """
        if not self._compiled.stateful:
            self._checkpoint.remove_siblings(_RUN)
            return
        batch = None if self.opened.will_repeat else self._checkpoint.unfinished()
        if batch is not None:
            planned = self._checkpoint.planned_offsets(batch) or {}
            cut_plan(self._checkpoint, batch, ranges_of(self.opened, planned), self._rows)

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
        starts = next_offsets(known, self.opened.last, self._cluster.starts(known.log))
        return live(self._spark, self._cluster, known.log, starts, self._rows)

    def _planned(self) -> DataFrame:
        frames = []
        for number, topic in enumerate(self._flow.reads):
            decoded = self._decoders[topic.name].decode(self._raw(topic))
            seen = observed(decoded, f"in{number}", self._cell.column)
            frames.append(self._counted(seen, number, streaming=True))
        return self._encoded(frames)

    def _counted(self, seen: DataFrame, number: int, *, streaming: bool) -> DataFrame:
        """What the function sees of an input of events, with the coordinates of each record."""
        topic, late = self._with_schema(self._flow.reads[number]), F.col("late")
        return counted(seen, topic, late, streaming=streaming, beside=coordinates(number))

    def _encoded(self, frames: Sequence[DataFrame]) -> DataFrame:
        """Keys and values that the function makes of its inputs, with the coordinates of each row."""
        rows = trace(self._flow, frames)
        beside = lineage_columns(rows)
        encoded = encode(rows, self._compiled.schema, self._flow.writes.key, beside)
        value = self._guard.column(F.col("key"), F.col("value"))
        return encoded.select("key", value.alias("value"), *beside)

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
        """``number`` is Spark's. The batches of a flow without state are numbered by the log alone."""
        last = self.opened.last
        if self._compiled.stateful and last is not None and number <= last.batch:
            frame.write.format("noop").mode("append").save()
            self._sync_checkpoint()
            self._cell.set(last.next_watermark_us)
            return
        watermark_us = self._cell.get()
        planned = self._checkpoint.planned_offsets(number)
        if planned is None:
            raise self._lost(number)
        inputs = ranges_of(self.opened, planned)
        if not self._compiled.stateful:
            # Spark begins every run with a batch, whether there is input or not.
            if not _advances(inputs):
                return
            number = last.batch + 1 if last else 0
        with contextlib.closing(self._rows_of(frame, inputs)) as rows:
            self._sync_checkpoint()
            if not rows.count and not _advances(inputs):
                return
            result = self._result(rows, number, inputs, watermark_us)
            try:
                self._write(result)
            except Miscounted:
                self._write(self._with_counts(result, self._counter.count(inputs)))
        size = sum(one.bytes for one in result.counts.values())
        self.too_large = size > _TOO_LARGE * self._settings.max_bytes

    def _lost(self, number: int) -> CheckpointLost:
        name, stateful = self._flow.name, self._compiled.stateful
        lost = CheckpointLost(
            f"the checkpoint of flow {name} at {self._checkpoint.location} is without batch {number}, which runs now",
            detail=last_progress(self.opened.generation, self.opened.last),
            hint="nothing else may change it while the flow runs"
            + (f"; {rebuild_hint(name)}" if stateful else ""),
        )
        # Without state the next run has another one.
        lost.retriable = not stateful
        return lost

    def _sync_checkpoint(self) -> None:
        """Before the log commits the batch, or Spark notes it as done."""
        if self._sync is not None:
            self._sync.sync()

    def _write(self, result: BatchResult) -> None:
        self.opened.last = commit_batch(self._cluster, self._writer, self._flow, self.opened, result)
        for letters in result.table_dead:
            letters.clear()
        self._cell.set(self.opened.last.next_watermark_us)

    def _rows_of(self, frame: DataFrame, inputs: Ranges) -> BatchRows:
        if not self._tables:
            return self._collector.collect(frame, self._tasks(inputs))
        self._observation = Observation()
        for state in self._tables:
            state.refresh()
        frames = {state.topic.name: state.frame for state in self._tables}
        number = self._flow.reads.index(self._flow.streams[0])
        stream = self._flow.streams[0].name
        seen = observed(self._decoders[stream].decode(frame), self._observation, self._cell.column)
        frames[stream] = self._counted(seen, number, streaming=False)
        self._with_tables = self._encoded([frames[topic.name] for topic in self._flow.reads])
        return self._collector.collect(self._with_tables, self._tasks(inputs))

    def _tasks(self, inputs: Ranges) -> int:
        """How many tasks give rows: one for each partition that is read, or of the shuffle."""
        reads = sum(low < high for ranges in inputs.values() for low, high in ranges.values())
        return max(reads, int(self._spark.conf.get("spark.sql.shuffle.partitions") or 1))

    def _result(self, rows: BatchRows, number: int, inputs: Ranges, watermark_us: int | None) -> BatchResult:
        # A plan that ran again, because its rows were too large to be held, has counted twice.
        counter = self._counter
        counts = counter.count(inputs) if rows.is_spilled else counter.counts(self._tallies(), inputs)
        return self._with_counts(self._uncounted(rows, number, inputs, watermark_us), counts)

    def _with_counts(self, result: BatchResult, counts: dict[str, Counts]) -> BatchResult:
        left_out = functools.partial(self._counter.left_out, counts, result.inputs)
        return dataclasses.replace(result, counts=counts, left_out=left_out)

    def _uncounted(
        self, rows: BatchRows, number: int, inputs: Ranges, watermark_us: int | None
    ) -> BatchResult:
        state_rows, state_bytes = self._state()
        return BatchResult(
            number=number,
            pieces=rows.pieces,
            inputs=inputs,
            tables={state.log: state.reached for state in self._tables},
            watermark_us=watermark_us,
            table_dead=[state.dead_letters for state in self._tables],
            state_rows=state_rows,
            state_bytes=state_bytes,
        )

    def _tallies(self) -> dict[str, dict[str, Any]]:
        """What the plan has counted on its way, by input."""
        if self._tables:
            return {self._flow.streams[0].name: counts_of(self._observation)}
        metrics = self._metrics()
        return {topic.name: metrics[f"in{at}"] for at, topic in enumerate(self._flow.reads)}

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
