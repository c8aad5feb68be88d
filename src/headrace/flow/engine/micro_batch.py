"""Runs a flow in micro-batches: Spark runs one plan, from the input topics to keys and values, batch by batch.

The rows of a batch and its progress record are written in one transaction (``headrace.flow.commit``). If Spark repeats
a batch whose progress record exists, nothing is written. The plan runs only to update Spark's state.

A flow without state does not depend on its checkpoint: each run starts where the progress records end.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import secrets
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from headrace.client.transactional_writer import TransactionalWriter
from headrace.clock import SystemClock
from headrace.flow.batch_rows import BatchRows, OutputGuard, RowCollector
from headrace.flow.checkpoint_fit import cut_plan, last_progress
from headrace.flow.codec.codec import Decoder, encode
from headrace.flow.commit import (
    BatchResult,
    Miscounted,
    commit_batch,
    newest_at_start,
    next_newest,
    ranges_of,
)
from headrace.flow.compile.lineage import coordinates, lineage_columns, trace
from headrace.flow.compile.spark_watermark import SparkWatermark
from headrace.flow.context import FlowContext
from headrace.flow.engine.engine import BATCH_S_MAX, Engine
from headrace.flow.errors import CheckpointLost, PartitionsAdded, rebuild_hint
from headrace.flow.flow_state import FlowState, next_offsets
from headrace.flow.inputs import accepted_rows, stream_of, with_counts
from headrace.flow.lateness import Lateness, WatermarkPolicy
from headrace.flow.rejected import Counts, InputCounter
from headrace.flow.spark.checkpoint import Checkpoint, CheckpointSync
from headrace.flow.spark.internals import (
    WatermarkCell,
    last_execution,
    observed_metrics,
    plan_text,
)
from headrace.model.declarations import Topic
from headrace.model.progress import Batch, Ranges

__all__ = ["MicroBatchRun"]

_TOO_LARGE_FACTOR = 2
_MEMORY_FACTOR = 2
"""A batch holds its rows in memory up to this multiple of ``flow.max_bytes``; larger output is written to disk."""
_IDLE = "Waiting for data to arrive"
"""Spark's status of a query that has nothing to do."""
_OPERATION_CHECK = "spark.sql.streaming.unsupportedOperationCheck"
_RUN_PREFIX = "run-"
"""Prefix of the checkpoints of flows without state. Each run has its own checkpoint."""
_start_lock = threading.Lock()


class _StopRequested(Exception):
    """A batch began after ``stop`` was called. The next run repeats that batch."""


class MicroBatchRun(Engine):
    def __init__(
        self, context: FlowContext, state: FlowState, writer: TransactionalWriter, rows_max: int
    ) -> None:
        super().__init__(context, state, writer, rows_max)
        options, spark, stateful = context.options, context.spark, context.compiled.stateful
        self._inputs = {source.topic: source for source in state.generation.inputs}
        self._run_prefix = f"{_RUN_PREFIX}g{state.generation.generation}-"
        run = options.checkpoint_of(self._flow.name, f"{self._run_prefix}{secrets.token_hex(6)}")
        self._checkpoint = Checkpoint(spark, state.checkpoint if stateful else run)
        self._sync = CheckpointSync(self._checkpoint.location, options.fsync) if stateful else None
        self._cell = WatermarkCell(spark)
        self._spark_watermark = SparkWatermark()
        self._watermarks = WatermarkPolicy(SystemClock(), options.idle_ms / 1_000)
        self._guard = OutputGuard(spark)
        self._collector = RowCollector(
            self._guard, _MEMORY_FACTOR * options.max_bytes, ties=self._compiled.ties
        )
        self._started = threading.Event()
        self._busy = threading.Lock()
        self._stopping = threading.Event()
        self._decoders = {
            topic.name: Decoder(context.with_schema(topic), options.bounds) for topic in self._flow.streams
        }
        logs = {topic.name: self._inputs[topic.name].log for topic in self._flow.streams}
        self._latenesses = self._open_latenesses()
        self._counter = InputCounter(
            spark,
            context.cluster,
            self._decoders,
            logs,
            self._latenesses,
            with_late_content=state.generation.late == "side",
        )

    def _open_latenesses(self) -> dict[str, Lateness]:
        """Return the inputs of which late events are rejected, by the app's name of the topic."""
        if self.state.generation.late not in ("drop", "side"):
            return {}
        latenesses = {}
        for name, policy in self._flow.late_policies.items():
            source = self._inputs[name]
            partitions = self._cluster.expect_topic(source.log).partitions
            deleted = {int(number): head for number, head in source.deleted.items()}
            watermark = self._cell.column if self._compiled.has_watermark else None
            latenesses[name] = Lateness(self._spark, policy, partitions, deleted, watermark)
        return latenesses

    @property
    def is_idle(self) -> bool:
        # A batch without records can follow the last record. Before it, Spark reports "Waiting for next trigger".
        return not self._has_empty_batches or self.query.status["message"] == _IDLE

    @property
    def _has_empty_batches(self) -> bool:
        """Whether a batch without records can drop old state or, in append mode, write completed windows."""
        return self._compiled.stateful and self._compiled.mode == "append"

    # Start and stop

    def start(self) -> None:
        last = self.state.last
        if last is not None:
            self._cell.set(last.watermark_us if self.state.will_repeat else last.next_watermark_us)
        self._load_newest(last.newest_us if last is not None and self.state.will_repeat else self._newest())
        self._prepare_checkpoint()
        stream = (
            self._stream()
            .writeStream.queryName(self.query_name)
            .outputMode(self._compiled.mode)
            .option("checkpointLocation", self._checkpoint.location)
            .trigger(processingTime=f"{self._options.trigger_ms} milliseconds")
            .foreachBatch(self._batch)
        )
        empty_batches = str(self._has_empty_batches).lower()
        with _start_lock:
            # The setting belongs to the session; a query copies it when it starts.
            self._spark.conf.set("spark.sql.streaming.noDataMicroBatches.enabled", empty_batches)
            # The compiler already ran this check on the user's plan. Here Spark would reject the sort that
            # ``headrace.flow.compile.lineage`` added so that the first of several duplicates is retained.
            self._spark.conf.set(_OPERATION_CHECK, "false")
            try:
                self._query = stream.start()
            finally:
                self._spark.conf.unset(_OPERATION_CHECK)
        self._started.set()

    def _newest(self) -> Mapping[str, Mapping[str, int]]:
        """Return the newest event times before the next batch."""
        if self.state.last is not None:
            return self.state.last.next_newest_us
        return newest_at_start(self.state.generation)

    def _load_newest(self, newest: Mapping[str, Mapping[str, int]]) -> None:
        for name, lateness in self._latenesses.items():
            lateness.load({int(number): time_us for number, time_us in newest.get(name, {}).items()})

    def _prepare_checkpoint(self) -> None:
        if not self._compiled.stateful:
            self._checkpoint.remove_siblings(self._run_prefix)
            return
        batch = None if self.state.will_repeat else self._checkpoint.unfinished()
        if batch is not None:
            planned = self._checkpoint.planned_offsets(batch) or {}
            cut_plan(self._checkpoint, batch, ranges_of(self.state, planned), self._rows_max)

    def poll(self, stop: threading.Event) -> None:
        """Does nothing: micro-batches need no work between batches."""

    @property
    def is_busy(self) -> bool:
        return self._busy.locked()

    def stop(self, patience_s: float = BATCH_S_MAX) -> None:
        self._stopping.set()
        if self._busy.acquire(timeout=patience_s):
            self._busy.release()
        self.query.stop()

    def close(self) -> None:
        """Drop the query. The query in the JVM references a method of this object, and this object references the
        query, so neither could be garbage-collected.
        """
        self._query = None

    def plan(self, chars_max: int) -> str | None:
        return plan_text(self._spark, last_execution(self.query), chars_max)

    # The plan

    def _stream(self) -> DataFrame:
        """Return the plan that Spark runs for each batch."""
        frames = []
        for number, topic in enumerate(self._flow.reads):
            decoded = self._decoders[topic.name].decode(self._records(topic))
            counted = with_counts(decoded, f"in{number}", self._latenesses.get(topic.name))
            has_watermark = self._compiled.has_watermark and topic.name in self._latenesses
            frames.append(self._accepted(counted, number, has_watermark=has_watermark))
        return self._encoded(frames)

    def _records(self, topic: Topic) -> DataFrame:
        source = self._inputs[topic.name]
        starts = next_offsets(source, self.state.last, self._cluster.starts(source.log))
        return stream_of(self._spark, self._cluster, source.log, starts, self._rows_max)

    def _accepted(self, counted: DataFrame, number: int, *, has_watermark: bool) -> DataFrame:
        """Return the rows of an input that are passed to the function, with the coordinates of each record
        (``headrace.flow.compile.lineage``).
        """
        topic = self._context.with_schema(self._flow.reads[number])
        return accepted_rows(counted, topic, has_watermark=has_watermark, extra_columns=coordinates(number))

    def _encoded(self, frames: Sequence[DataFrame]) -> DataFrame:
        """Call the function, and return its rows as keys and values, with the coordinates of each row."""
        rows = trace(self._flow, frames)
        coordinate_columns = lineage_columns(rows)
        encoded = encode(rows, self._compiled.schema, self._flow.writes.key, coordinate_columns)
        value = self._guard.column(F.col("key"), F.col("value"))
        return encoded.select("key", value.alias("value"), *coordinate_columns)

    # A batch

    def _batch(self, frame: DataFrame, number: int) -> None:
        """Called by Spark. An exception ends the query; ``error`` stores the original exception."""
        try:
            self._started.wait()
            with self._busy:
                # A batch that begins while the query stops must fail: otherwise Spark would commit it in the
                # checkpoint. The batch must not wait for the stop, because the stop waits for the batch.
                if self._stopping.is_set():
                    raise _StopRequested
                began = time.monotonic()
                self._commit(frame, number)
                self.took_ms = round((time.monotonic() - began) * 1_000, 1)
        except _StopRequested:
            raise
        except BaseException as error:
            self.error = error
            raise

    def _commit(self, frame: DataFrame, number: int) -> None:
        """``number`` is Spark's batch number. For a flow without state, the progress records define the numbers."""
        last = self.state.last
        if self._compiled.stateful and last is not None and number <= last.batch:
            frame.write.format("noop").mode("append").save()
            self._sync_checkpoint()
            self._move_on(last)
            return
        watermark_us = self._cell.get()
        planned = self._checkpoint.planned_offsets(number)
        if planned is None:
            raise self._no_plan_error(number)
        inputs = ranges_of(self.state, planned)
        self._expect_known_partitions(inputs)
        if not self._compiled.stateful:
            # Spark starts every run with a batch, even if it has no input.
            if not _advances(inputs):
                return
            number = last.batch + 1 if last else 0
        with contextlib.closing(self._rows_of(frame, inputs)) as rows:
            self._sync_checkpoint()
            if not rows.count and not _advances(inputs):
                return
            result = self._result(rows, number, inputs, watermark_us)
            self.upstream.expect_same()
            try:
                self._write(result)
            except Miscounted:
                self._write(self._with_counts(result, self._counter.count(inputs)))
        size = sum(counts.bytes for counts in result.counts.values())
        self.too_large = size > _TOO_LARGE_FACTOR * self._options.max_bytes

    def _no_plan_error(self, number: int) -> CheckpointLost:
        name, stateful = self._flow.name, self._compiled.stateful
        error = CheckpointLost(
            f"the checkpoint of flow {name} at {self._checkpoint.location} has no plan for the running batch {number}",
            detail=last_progress(self.state.generation, self.state.last),
            hint="do not change the checkpoint while the flow runs"
            + (f"; {rebuild_hint(name)}" if stateful else ""),
        )
        # A flow without state gets a new checkpoint in the next run.
        error.retriable = not stateful
        return error

    def _sync_checkpoint(self) -> None:
        """Sync the checkpoint to disk. Call it before the log and Spark commit the batch."""
        if self._sync is not None:
            self._sync.sync()

    def _write(self, result: BatchResult) -> None:
        reached_us = self._reached(result) if self._latenesses else None
        self.state.last = commit_batch(
            self._cluster, self._writer, self._flow, self.state, result, reached_us
        )
        for spool in result.table_dead:
            spool.clear()
        self._move_on(self.state.last)

    def _move_on(self, last: Batch) -> None:
        """Set the times that decide what is late, or too old, in the batch after ``last``."""
        self._cell.set(last.next_watermark_us)
        self._load_newest(last.next_newest_us)
        if self._compiled.has_watermark:
            self._spark_watermark.set(self.query, last.next_watermark_us)

    def _reached(self, result: BatchResult) -> dict[str, int]:
        """Return the event time that each input has reached after the batch. An input without events is absent."""
        newest = next_newest(self.state, result)
        reached = {}
        for name in self._latenesses:
            log = self._inputs[name].log
            ranges = {int(number): bounds for number, bounds in result.inputs.get(log, {}).items()}
            ends = self._cluster.ends(log) if self._compiled.has_watermark else {}
            unread = [number for number, end in ends.items() if ranges.get(number, (0, 0))[1] < end]
            read = [number for number, (low, high) in ranges.items() if low < high]
            times = {int(number): time_us for number, time_us in newest.get(name, {}).items()}
            reached_us = self._watermarks.reached_us(name, times, read, unread)
            if reached_us is not None:
                reached[name] = reached_us
        return reached

    def _expect_known_partitions(self, inputs: Ranges) -> None:
        """Raise if an input has new partitions, which the plan of this run does not count."""
        for name, lateness in self._latenesses.items():
            log = self._inputs[name].log
            if any(int(number) >= lateness.partitions for number in inputs.get(log, {})):
                raise PartitionsAdded(
                    f"topic {log}, which flow {self._flow.name} reads, has new partitions",
                    hint="no action is needed: Headrace starts the flow again",
                )

    def _rows_of(self, frame: DataFrame, inputs: Ranges) -> BatchRows:
        return self._collector.collect(frame, self._tasks(inputs))

    def _tasks(self, inputs: Ranges) -> int:
        """Return how many tasks return rows: one for each partition of the input or of the shuffle."""
        partitions_with_input = sum(low < high for ranges in inputs.values() for low, high in ranges.values())
        return max(partitions_with_input, int(self._spark.conf.get("spark.sql.shuffle.partitions") or 1))

    def _result(self, rows: BatchRows, number: int, inputs: Ranges, watermark_us: int | None) -> BatchResult:
        # If the rows exceeded the memory, the plan ran twice, so its counts are wrong.
        counter = self._counter
        counts = counter.count(inputs) if rows.is_spilled else counter.counts(self._plan_counts(), inputs)
        state_rows, state_bytes = self._state_size()
        result = BatchResult(
            number=number,
            pieces=rows.pieces,
            inputs=inputs,
            watermark_us=watermark_us,
            state_rows=state_rows,
            state_bytes=state_bytes,
        )
        return self._with_counts(result, counts)

    def _with_counts(self, result: BatchResult, counts: dict[str, Counts]) -> BatchResult:
        rejected = functools.partial(self._counter.rejected, counts, result.inputs)
        return dataclasses.replace(result, counts=counts, rejected=rejected)

    def _plan_counts(self) -> dict[str, dict[str, Any]]:
        """Return the counts of the plan that ran last, by input."""
        names = [f"in{number}" for number in range(len(self._flow.reads))]
        metrics = observed_metrics(self.query, names)
        return {topic.name: metrics[name] for name, topic in zip(names, self._flow.reads, strict=True)}

    def _state_size(self) -> tuple[int, int]:
        """Return rows and bytes of Spark's state after the previous batch: Spark reports a batch when it has ended."""
        if not self._compiled.stateful:
            return 0, 0
        progress = self.query.lastProgress
        operators = progress.stateOperators if progress else []
        return sum(operator.numRowsTotal for operator in operators), sum(
            operator.memoryUsedBytes for operator in operators
        )


def _advances(inputs: Ranges) -> bool:
    return any(low < high for ranges in inputs.values() for low, high in ranges.values())
