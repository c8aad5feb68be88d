"""Runs a flow in real time: Spark processes each record when it arrives, and writes its row without a transaction.

So rows are written at least once: after a crash, Spark starts from its checkpoint and writes the later rows again.
Readers recognize repeated rows, because each row has its source in a header, and rows from one input partition are
written in order, without gaps. To avoid gaps, the producer retries forever and never skips a row.

At intervals of ``flow.realtime_ms``, Spark ends its long batch and begins the next. Then the progress is recorded
(``realtime_progress``). No event is late in real time, because lateness is decided per batch.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from headrace.client.transactional_writer import TransactionalWriter
from headrace.flow.codec.codec import Decoder
from headrace.flow.context import FlowContext
from headrace.flow.engine import task_slots as slots
from headrace.flow.engine.engine import BATCH_S_MAX, Engine
from headrace.flow.engine.realtime_progress import BatchTotals, RealtimeProgress
from headrace.flow.errors import InputDeleted, rebuild_hint
from headrace.flow.flow_state import FlowState
from headrace.flow.inputs import client_options, stream_of
from headrace.flow.realtime_rows import output_partition, rows_with_source, source_header
from headrace.flow.spark.checkpoint import Checkpoint
from headrace.flow.spark.conf import REALTIME_POOL
from headrace.flow.spark.internals import last_batch, last_execution, plan_text

__all__ = ["RealtimeRun"]

_POLL_S = 0.5
_ORDERED_PRODUCER = {
    "kafka.acks": "all",
    "kafka.enable.idempotence": "true",
    "kafka.linger.ms": "0",
    "kafka.compression.type": "lz4",
    # Never give up on a row. If a row were skipped and the next row written, readers would later take the
    # skipped row for a repeated row and ignore it.
    "kafka.delivery.timeout.ms": str(2**31 - 1),
    "kafka.retries": str(2**31 - 1),
}


class RealtimeRun(Engine):
    def __init__(
        self, context: FlowContext, state: FlowState, writer: TransactionalWriter, rows_max: int
    ) -> None:
        super().__init__(context, state, writer, rows_max)
        (self._input,) = state.generation.inputs
        topic = context.with_schema(self._flow.streams[0])
        self._checkpoint = Checkpoint(context.spark, state.checkpoint)
        self._decoder = Decoder(topic, context.options.bounds)
        self._progress = RealtimeProgress(context, state, writer, topic, self._decoder, rows_max)
        self._polled_s = 0.0
        self._recorded: int | None = None
        """The last Spark batch whose progress is recorded completely; None before the first."""
        self._waiting: set[str] = set()
        """Partitions whose first records were deleted, and that the flow had not read at the last poll."""

    def start(self) -> None:
        slots.occupy(self._spark, self._flow.name, self._cluster.expect_topic(self._input.log).partitions)
        output = self.state.generation.output
        row_bytes_max = self._cluster.configs(output).get("max.message.bytes") or "1048576"
        # PySpark's type stubs do not have this trigger.
        writer: Any = self._stream().writeStream
        with _realtime_pool(self._spark):
            self._query = self._start(writer, output, row_bytes_max)

    def _start(self, writer: Any, output: str, row_bytes_max: str) -> StreamingQuery:
        query: StreamingQuery = (
            writer.format("kafka")
            .options(**{**client_options(self._cluster), **_ORDERED_PRODUCER})
            # The client must reject a row that is too large for the log, before it sends any later row.
            .option("kafka.max.request.size", row_bytes_max)
            .option("topic", output)
            .option("checkpointLocation", self._checkpoint.location)
            .queryName(self.query_name)
            .outputMode("update")
            .trigger(realTime=f"{self._options.realtime_ms} milliseconds")
            .start()
        )
        return query

    def _stream(self) -> DataFrame:
        generation = self.state.generation
        raw = stream_of(self._spark, self._cluster, self._input.log, self._input.starts, None)
        decoded = self._decoder.decode(raw).select(
            "row",
            "partition",
            "offset",
            F.col("reason").isNotNull().alias("dead"),
            F.length("value").alias("bytes"),
        )
        counted = decoded.observe(
            "in",
            F.count(F.lit(1)).alias("rows"),
            F.count_if("dead").alias("dead"),
            F.sum("bytes").alias("bytes"),
        )
        is_keyless = F.col("key").isNull()
        rows = rows_with_source(counted, self._compiled).observe(
            "out", F.count(F.lit(1)).alias("rows"), F.count_if(is_keyless).alias("keyless")
        )
        partition = output_partition(self._spark, F.col("key"), generation).alias("partition")
        return rows.where(~is_keyless).select("key", "value", partition, source_header().alias("headers"))

    def plan(self, chars_max: int) -> str | None:
        return plan_text(self._spark, last_execution(self.query), chars_max)

    def poll(self, stop: threading.Event) -> None:
        """Record the progress of the batches that Spark has finished since the last poll."""
        now = time.monotonic()
        if now - self._polled_s >= _POLL_S:
            self._polled_s = now
            self._record(stop)

    def _record(self, stop: threading.Event) -> None:
        last_batch_done = self._last_done()
        if last_batch_done is None or (self._recorded is not None and last_batch_done <= self._recorded):
            return
        planned_ends = self._checkpoint.planned_offsets(last_batch_done)
        if planned_ends is None:
            return
        partitions = planned_ends[self._input.log]
        slots.occupy(self._spark, self._flow.name, len(partitions))
        self._expect_records(partitions)
        if self._progress.record(planned_ends, self._totals_since_progress(last_batch_done), stop):
            self._recorded = last_batch_done

    def _expect_records(self, partitions: dict[str, int]) -> None:
        """Raise if a partition's first records were deleted before the flow read them.

        Spark fails if its next offset was deleted. Only at offset 0 it waits forever instead. A single poll proves
        nothing: the flow may have read the records before they were deleted, and after Spark wrote the checkpoint. So
        only a partition that is at offset 0 in two polls is an error.
        """
        starts = self._cluster.starts(self._input.log)
        waiting = {
            number for number, offset in partitions.items() if offset == 0 < starts.get(int(number), 0)
        }
        if still_waiting := waiting & self._waiting:
            number = min(still_waiting)
            raise InputDeleted(
                f"flow {self._flow.name} is at offset 0 of {self._input.log}/{number}, which starts at"
                f" {starts[int(number)]}",
                detail="the earlier records were deleted before the flow read them, or were never committed",
                hint=rebuild_hint(self._flow.name) + "; it will not include the deleted records",
            )
        self._waiting = waiting

    def _last_done(self) -> int | None:
        last = last_batch(self.query)
        if last is None and self._recorded is None:
            # The previous run might have finished a batch without recording its progress.
            return self._checkpoint.last_done()
        return last

    def _totals_since_progress(self, last_batch_done: int) -> BatchTotals | None:
        """Return the counts of all batches since the last progress record; None if this run did not count them all."""
        if self._recorded is None and self.state.last is not None:
            return None
        metrics = {progress.batchId: progress.observedMetrics for progress in self.query.recentProgress}
        totals = BatchTotals()
        for number in range(0 if self._recorded is None else self._recorded + 1, last_batch_done + 1):
            batch_metrics = metrics.get(number)
            if batch_metrics is None or "in" not in batch_metrics or "out" not in batch_metrics:
                return None
            read, sent = batch_metrics["in"], batch_metrics["out"]
            totals += BatchTotals(
                read["rows"], read["bytes"] or 0, read["dead"], sent["rows"], sent["keyless"]
            )
        return totals

    def stop(self, patience_s: float = BATCH_S_MAX) -> None:
        """Stop during a batch, which can take minutes. The next start writes the rows of that batch again."""
        self.query.stop()

    def close(self) -> None:
        if self._query is not None:
            with contextlib.suppress(PySparkException):
                self._query.stop()
        self._query = None
        slots.release(self._flow.name)


@contextlib.contextmanager
def _realtime_pool(spark: SparkSession) -> Iterator[None]:
    """Start queries in the scheduler pool that gets task slots before all others."""
    context, name = spark.sparkContext, "spark.scheduler.pool"
    previous_pool = context.getLocalProperty(name)
    context.setLocalProperty(name, REALTIME_POOL)
    try:
        yield
    finally:
        context.setLocalProperty(name, previous_pool)  # type: ignore[arg-type]
