"""A flow that runs in real time: Spark takes each record as it comes and writes its row by itself.

There are no batches to commit, so rows are written at least once: after a crash Spark begins where its checkpoint says
that the input is done, and writes again what came after. What makes that bearable is that whoever follows can tell:
each row has its source in a header, and rows from one partition of the input are written in their order, without a
gap. For that the producer tries for ever instead of giving a row up and going on with the next.

Now and then (``flow.realtime_ms``) Spark ends its long batch and begins the next. Then what is done is noted in the
progress (``headrace.flow.realtime_notes``). What is late is not judged: there is no batch to decide it once.
"""

from __future__ import annotations

import contextlib
import dataclasses
import threading
import time
from collections.abc import Iterator
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from headrace.client.cluster import Cluster
from headrace.flow import slots
from headrace.flow.checkpoint import Checkpoint
from headrace.flow.compiled import Compiled
from headrace.flow.decoding import Decoder
from headrace.flow.errors import InputGone, rebuild_hint
from headrace.flow.inputs import client_options, live
from headrace.flow.opening import Opened
from headrace.flow.options import FlowOptions
from headrace.flow.plan_text import last_execution, plan_text
from headrace.flow.realtime_notes import Passed, RealtimeNotes
from headrace.flow.sourced import as_header, output_partition, sourced
from headrace.flow.spark_conf import REALTIME_POOL
from headrace.flow.writer import Writer
from headrace.model.schema import Schema

__all__ = ["Realtime"]

_FINISH_S = 20
_LOOK_S = 0.5
_IN_ORDER = {
    "kafka.acks": "all",
    "kafka.enable.idempotence": "true",
    "kafka.linger.ms": "0",
    "kafka.compression.type": "lz4",
    # A row that was given up, with a later one in the log, would be taken for a repeat when it comes again.
    "kafka.delivery.timeout.ms": str(2**31 - 1),
    "kafka.retries": str(2**31 - 1),
}


class Realtime:
    """One run of a flow, from its start to its first error or its stop."""

    too_large = False
    """Nothing is held, so nothing can be."""
    took_ms = None
    """Each row is written by itself: there is no batch that could take long."""

    def __init__(
        self,
        spark: SparkSession,
        cluster: Cluster,
        compiled: Compiled,
        schemas: dict[str, Schema],
        writer: Writer,
        opened: Opened,
        settings: FlowOptions,
        rows: int,
    ) -> None:
        """``rows`` are how many of the records that come next may be held at once, where they must be."""
        self.opened = opened
        self.error: BaseException | None = None
        self._spark = spark
        self._cluster = cluster
        self._compiled = compiled
        self._flow = compiled.flow
        self._settings = settings
        (self._input,) = opened.generation.inputs
        topic = self._flow.streams[0]
        topic = dataclasses.replace(topic, schema=schemas[topic.name])
        self._checkpoint = Checkpoint(spark, opened.checkpoint)
        self._decoder = Decoder(topic, settings.bounds)
        where = (spark, cluster, compiled, topic, self._decoder, writer, opened, settings, rows)
        self._notes = RealtimeNotes(*where)
        self._query: StreamingQuery | None = None
        self._looked = 0.0
        self._noted: int | None = None
        """The last of Spark's batches of which all is noted; None before there is one."""
        self._waiting: set[str] = set()
        """Partitions whose first record was not there at the last note, though they do not begin at 0 any more."""

    @property
    def query(self) -> StreamingQuery:
        assert self._query is not None, "it runs, between start and close"
        return self._query

    def start(self) -> None:
        slots.hold(self._spark, self._flow.name, self._cluster.expect_topic(self._input.log).partitions)
        output = self.opened.generation.output
        largest = self._cluster.configs(output).get("max.message.bytes") or "1048576"
        name = f"{self._flow.name}.g{self.opened.generation.generation}"
        # PySpark's own types do not know the trigger.
        writer: Any = self._planned().writeStream
        with _first_in_line(self._spark):
            self._query = self._started(writer, name, output, largest)

    def _started(self, writer: Any, name: str, output: str, largest: str) -> StreamingQuery:
        query: StreamingQuery = (
            writer.format("kafka")
            .options(**{**client_options(self._cluster), **_IN_ORDER})
            # The client refuses what the log would, before any later row is under way.
            .option("kafka.max.request.size", largest)
            .option("topic", output)
            .option("checkpointLocation", self._checkpoint.location)
            .queryName(name)
            .outputMode("update")
            .trigger(realTime=f"{self._settings.realtime_ms} milliseconds")
            .start()
        )
        return query

    def _planned(self) -> DataFrame:
        generation = self.opened.generation
        raw = live(self._spark, self._cluster, self._input.log, self._input.starts, None)
        decoded = self._decoder.decode(raw).select(
            "row",
            "partition",
            "offset",
            F.col("reason").isNotNull().alias("dead"),
            F.length("value").alias("bytes"),
        )
        seen = decoded.observe(
            "in",
            F.count(F.lit(1)).alias("rows"),
            F.count_if("dead").alias("dead"),
            F.sum("bytes").alias("bytes"),
        )
        is_keyless = F.col("key").isNull()
        rows = sourced(seen, self._compiled).observe(
            "out", F.count(F.lit(1)).alias("rows"), F.count_if(is_keyless).alias("keyless")
        )
        partition = output_partition(self._spark, F.col("key"), generation).alias("partition")
        return rows.where(~is_keyless).select("key", "value", partition, as_header().alias("headers"))

    def plan(self, chars_max: int) -> str | None:
        """Of the stretch that runs."""
        return plan_text(self._spark, last_execution(self.query), chars_max)

    # What is done

    def look(self, stop: threading.Event) -> None:
        """Notes what Spark has finished since; to be called often."""
        now = time.monotonic()
        if now - self._looked >= _LOOK_S:
            self._looked = now
            self._note(stop)

    def _note(self, stop: threading.Event) -> None:
        done = self._last_done()
        if done is None or (self._noted is not None and done <= self._noted):
            return
        reached = self._checkpoint.planned_offsets(done)
        if reached is None:
            return
        partitions = reached[self._input.log]
        slots.hold(self._spark, self._flow.name, len(partitions))
        self._expect_records(partitions)
        if self._notes.note(reached, self._passed(done), stop):
            self._noted = done

    def _expect_records(self, partitions: dict[str, int]) -> None:
        """Where the offset that comes next is gone, Spark fails, except for offset 0: then it waits for a record there,
        for ever. A record that was read since may be gone just as well; so it counts if it is so twice.
        """
        starts = self._cluster.starts(self._input.log)
        waiting = {number for number, at in partitions.items() if at == 0 < starts.get(int(number), 0)}
        if gone := waiting & self._waiting:
            number = min(gone)
            raise InputGone(
                f"flow {self._flow.name} is at offset 0 of {self._input.log}/{number}, which begins at"
                f" {starts[int(number)]}",
                detail="what was there was deleted before the flow read it, or held no committed records",
                hint=rebuild_hint(self._flow.name) + "; it will be without them",
            )
        self._waiting = waiting

    def _last_done(self) -> int | None:
        last: Any = self.query._jsq.lastProgress()
        if last is not None:
            return int(last.batchId())
        # What the run before this one has finished, and may not have noted.
        return self._checkpoint.last_done() if self._noted is None else None

    def _passed(self, done: int) -> Passed | None:
        """What was counted in all batches since the last note; None where this run has not seen all of them."""
        if self._noted is None and self.opened.last is not None:
            return None
        told = {one.batchId: one.observedMetrics for one in self.query.recentProgress}
        found = Passed()
        for number in range(0 if self._noted is None else self._noted + 1, done + 1):
            metrics = told.get(number)
            if metrics is None or "in" not in metrics or "out" not in metrics:
                return None
            came, went = metrics["in"], metrics["out"]
            found += Passed(came["rows"], came["bytes"] or 0, came["dead"], went["rows"], went["keyless"])
        return found

    # The end

    def stop(self) -> None:
        """In the middle of a stretch: what it has written is written again at the next start."""
        self.query.stop()

    def wait_for_the_end(self) -> None:
        """A query that is no longer active may still have its name, for a moment: the next one could not have it."""
        with contextlib.suppress(PySparkException):
            self.query.awaitTermination(_FINISH_S)

    def close(self) -> None:
        if self._query is not None:
            with contextlib.suppress(PySparkException):
                self._query.stop()
        self._query = None
        slots.free(self._flow.name)


@contextlib.contextmanager
def _first_in_line(spark: SparkSession) -> Iterator[None]:
    """What starts here is in the pool of those that get a slot before all others."""
    context, name = spark.sparkContext, "spark.scheduler.pool"
    before = context.getLocalProperty(name)
    context.setLocalProperty(name, REALTIME_POOL)
    try:
        yield
    finally:
        context.setLocalProperty(name, before)  # type: ignore[arg-type]
