"""Enrichment: runs a flow that joins one stream with tables, in micro-batches.

The flow has no state. Its function is called for each batch, with the current rows of the tables. The progress record
of the batch has the offsets of the tables, so that ``verify`` can join the same versions.
"""

from __future__ import annotations

import dataclasses
import threading
from typing import Any

from pyspark.sql import DataFrame, Observation

from headrace.client.transactional_writer import TransactionalWriter
from headrace.flow.batch_rows import BatchRows
from headrace.flow.commit import BatchResult
from headrace.flow.context import FlowContext
from headrace.flow.engine.micro_batch import MicroBatchRun
from headrace.flow.failures import is_retriable
from headrace.flow.flow_state import FlowState
from headrace.flow.inputs import observed_counts, with_counts
from headrace.flow.spark.internals import execution_of, plan_text
from headrace.flow.tables.current import TableState
from headrace.model.declarations import Topic
from headrace.model.progress import Ranges

__all__ = ["EnrichmentRun"]


class EnrichmentRun(MicroBatchRun):
    def __init__(
        self, context: FlowContext, state: FlowState, writer: TransactionalWriter, rows_max: int
    ) -> None:
        super().__init__(context, state, writer, rows_max)
        self._tables = [self._table(topic) for topic in self._flow.tables]
        self._input_topic = self._flow.streams[0]
        self._observation = Observation()
        self._joined: DataFrame | None = None
        """The rows of the last batch."""

    def _table(self, topic: Topic) -> TableState:
        table_input, last = self._inputs[topic.name], self.state.last
        return TableState(
            self._spark,
            self._cluster,
            self._flow.name,
            self._context.with_schema(topic),
            table_input,
            self._options.bounds,
            last.tables.get(table_input.log, {}) if last else {},
        )

    def poll(self, stop: threading.Event) -> None:
        """Read the tables between batches, so that compaction does not remove a deletion before it is read."""
        if not self._busy.acquire(blocking=False):
            return
        try:
            for table in self._tables:
                table.read_between_batches(stop)
        except Exception as error:
            # Ignore a temporary error. If it persists, the next batch fails with the same error.
            if is_retriable(error):
                return
            self.error = error
        finally:
            self._busy.release()
        if self.error is not None:
            self.stop()

    def close(self) -> None:
        for table in self._tables:
            table.close()
        self._joined = None
        super().close()

    def plan(self, chars_max: int) -> str | None:
        return None if self._joined is None else plan_text(self._spark, execution_of(self._joined), chars_max)

    def _stream(self) -> DataFrame:
        return self._records(self._input_topic)

    def _rows_of(self, frame: DataFrame, inputs: Ranges) -> BatchRows:
        self._observation = Observation()
        for table in self._tables:
            table.refresh()
        frames = {table.topic.name: table.frame for table in self._tables}
        stream = self._input_topic.name
        lateness = self._latenesses.get(stream)
        counted = with_counts(self._decoders[stream].decode(frame), self._observation, lateness)
        number = self._flow.reads.index(self._input_topic)
        frames[stream] = self._accepted(counted, number, has_watermark=False)
        self._joined = self._encoded([frames[topic.name] for topic in self._flow.reads])
        return self._collector.collect(self._joined, self._tasks(inputs))

    def _result(self, rows: BatchRows, number: int, inputs: Ranges, watermark_us: int | None) -> BatchResult:
        return dataclasses.replace(
            super()._result(rows, number, inputs, watermark_us),
            tables={table.log: table.reached for table in self._tables},
            table_dead=[table.dead_letters for table in self._tables],
        )

    def _plan_counts(self) -> dict[str, dict[str, Any]]:
        return {self._input_topic.name: observed_counts(self._observation)}
