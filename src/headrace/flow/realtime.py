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
import time
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
from headrace.flow.inputs import client_options, live
from headrace.flow.opening import Opened
from headrace.flow.options import FlowOptions
from headrace.flow.realtime_notes import Passed, RealtimeNotes
from headrace.flow.sourced import as_header, output_partition, sourced
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

    def __init__(
        self,
        spark: SparkSession,
        cluster: Cluster,
        compiled: Compiled,
        schemas: dict[str, Schema],
        writer: Writer,
        opened: Opened,
        settings: FlowOptions,
    ) -> None:
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
        location = settings.checkpoint_of(self._flow.name, opened.generation.checkpoint)
        self._checkpoint = Checkpoint(spark, location)
        self._decoder = Decoder(topic, settings.bounds)
        where = (spark, cluster, compiled, topic, self._decoder, writer, opened, settings.max_rows)
        self._notes = RealtimeNotes(*where)
        self._query: StreamingQuery | None = None
        self._looked = 0.0
        self._noted: int | None = None
        """The last of Spark's batches of which all is noted; None before there is one."""

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
        self._query = (
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

    # What is done

    def look(self) -> None:
        """Notes what Spark has finished since; to be called often."""
        now = time.monotonic()
        if now - self._looked >= _LOOK_S:
            self._looked = now
            self._note()

    def _note(self) -> None:
        done = self._last_done()
        if done is None or (self._noted is not None and done <= self._noted):
            return
        reached = self._checkpoint.planned_offsets(done)
        if reached is None:
            return
        slots.hold(self._spark, self._flow.name, len(reached.get(self._input.log, {})))
        self._notes.note(reached, self._passed(done))
        self._noted = done

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
        slots.free(self._flow.name)
        if self._query is not None:
            with contextlib.suppress(PySparkException):
                self._query.stop()
        self._query = None
