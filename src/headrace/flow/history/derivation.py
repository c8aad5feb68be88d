"""Derives a flow's rows again: calls the flow's function for all input that its batches have read.

The progress records define the input of a generation: from its ``starts`` to the end of the last batch. The function
returns the rows that the flow's topic should have. Each row has its batch and its coordinates
(``headrace.flow.compile.lineage``), which define the order.

From the progress records of the flow, this module uses only the input ranges of the batches and the offsets of their
tables. It compares all other data in the progress records with the results (``progress_check``). The plain-Python codec
decodes records and encodes rows, and late events are computed from the events.

A flow that reads tables called its function for each batch, with the table versions of that batch. Consecutive batches
with the same table versions form a span. The function is called once per span, with the table versions of the span.

If input is missing (``gaps``), only some rows can be derived:

- of a flow without state, the batches after the last batch with missing input;
- of a flow that aggregates over windows of the event time, the windows after all missing input;
- of any other flow with state, no rows.

In the first two cases, the computation of watermarks starts with the recorded watermark of the last batch with missing
input.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import reduce
from itertools import islice

from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from headrace.client.cluster import Cluster
from headrace.client.tombstones import Tombstones
from headrace.flow.batch_rows import average_row_bytes, count_rows_and_bytes
from headrace.flow.codec.codec import TimeBounds, value_encoder
from headrace.flow.compile.compiler import Compiled
from headrace.flow.compile.plan import order_sensitive_operators
from headrace.flow.history.derived import ALL, NOTHING, Derived, Extent
from headrace.flow.history.gaps import (
    batches_through,
    deleted_inputs,
    input_ranges,
    last_affected,
    missing_through,
)
from headrace.flow.history.inputs import HistoryInputs
from headrace.flow.history.lateness import LateCheck
from headrace.flow.history.progress_check import BatchIndex, ProgressCheck
from headrace.flow.tables.reach import table_mistakes
from headrace.flow.tables.versions import TableVersions
from headrace.model.declarations import Topic
from headrace.model.kinds import Scalar
from headrace.model.progress import Batch, Ends, Generation, Ranges
from headrace.model.schema import Schema

__all__ = ["BatchSpan", "derive", "spans"]

_SPANS_PER_CHUNK = 50

Say = Callable[[str], None]


def derive(
    spark: SparkSession,
    cluster: Cluster,
    compiled: Compiled,
    schemas: Mapping[str, Schema],
    generation: Generation,
    through: Batch,
    bounds: TimeBounds,
    *,
    say: Say = lambda line: None,
) -> Derived:
    """Derive the rows of all batches of the generation, up to and including ``through``. The caller must close the
    result.
    """
    index = BatchIndex.of(batches_through(cluster, compiled.flow, generation.generation, through))
    inputs = HistoryInputs(spark, cluster, compiled, schemas, generation, index, bounds)
    return _Derivation(inputs, compiled, generation, index, through, say).run()


class _Derivation:
    def __init__(
        self,
        inputs: HistoryInputs,
        compiled: Compiled,
        generation: Generation,
        index: BatchIndex,
        through: Batch,
        say: Say,
    ) -> None:
        self._inputs = inputs
        self._cluster = inputs.cluster
        self._flow = compiled.flow
        self._compiled = compiled
        self._generation = generation
        self._index = index
        self._through = through
        self._say = say
        nothing = (inputs.empty(topic) for topic in self._flow.reads)
        self._operators = order_sensitive_operators(self._flow.function(*nothing))
        self._tables: dict[str, TableVersions] = {}

    def run(self) -> Derived:
        try:
            for topic in self._flow.tables:
                self._tables[topic.name] = self._open_table_versions(topic)
            derived = self._derive_until_complete()
            derived.mistakes += self._table_mistakes()
            return derived
        finally:
            for table in self._tables.values():
                table.close()

    def _open_table_versions(self, topic: Topic) -> TableVersions:
        table_input, topic_with_schema = self._inputs.input(topic), self._inputs.topic(topic)
        return TableVersions(
            self._inputs.spark,
            self._cluster,
            topic_with_schema,
            table_input.log,
            table_input.topic_id,
            table_input.starts,
            self._inputs.bounds,
        )

    def _table_mistakes(self) -> tuple[str, ...]:
        logs = [table.log for table in self._tables.values() if not table.is_replaced]
        return table_mistakes(self._cluster, self._flow, self._generation, self._through, logs)

    def _derive_until_complete(self) -> Derived:
        """Derive the rows. If records of a batch turn out to be missing, derive again without that batch."""
        last_broken_batch, reason = self._last_broken()
        is_compacted = any(
            Tombstones.of(self._cluster.configs(self._inputs.input(topic).log)).compacted
            for topic in self._flow.streams
        )
        while True:
            check = ProgressCheck(is_compacted)
            derived = self._attempt(last_broken_batch, reason, check)
            if check.last_incomplete_batch is None:
                return derived
            derived.close()
            last_broken_batch = next(
                batch for batch in self._batches() if batch.batch == check.last_incomplete_batch
            )
            reason = "records before it were compacted away"

    def _batches(self) -> Iterator[Batch]:
        return batches_through(self._cluster, self._flow, self._generation.generation, self._through)

    # Missing input

    def _last_broken(self) -> tuple[Batch | None, str]:
        """Return the last batch that cannot be derived, and the reason."""
        starts, reason = deleted_inputs(self._cluster, self._generation, self._through)
        candidates = [(last_affected(self._batches(), starts) if starts else None, reason)]
        if self._tables:
            candidates.append(self._last_without_tables())
        return max(candidates, key=lambda item: item[0].batch if item[0] else -1)

    def _last_without_tables(self) -> tuple[Batch | None, str]:
        last, log = None, ""
        for span in spans(self._batches()):
            for table in self._tables.values():
                if not table.is_known_at(span.tables.get(table.log, {})):
                    last, log = span.last, table.log
        return last, f"the rows of table {log} at that time were compacted away"

    def _attempt(self, last_broken_batch: Batch | None, reason: str, check: ProgressCheck) -> Derived:
        extent, after = self._extent(last_broken_batch)
        persisted: list[DataFrame] = []
        if extent is NOTHING:
            rows = self._inputs.spark.createDataFrame([], "key string, value string")
        else:
            persisted = self._derive(after, last_broken_batch, check)
            rows = reduce(DataFrame.unionByName, persisted)
        return Derived(
            rows=rows,
            count=check.rows,
            row_bytes=average_row_bytes(check.rows, check.bytes),
            through=self._through,
            after=after,
            extent=extent,
            operators=self._operators,
            records=check.records,
            late=check.late,
            dead=check.dead,
            missing=missing_through(last_broken_batch, reason) if last_broken_batch else (),
            mistakes=check.mistakes,
            persisted=persisted,
        )

    def _extent(self, last_broken_batch: Batch | None) -> tuple[Extent, Batch | None]:
        if last_broken_batch is None:
            return ALL, None
        if last_broken_batch.batch >= self._through.batch:
            return NOTHING, None
        if self._compiled.stateful:
            return self._complete_windows(last_broken_batch), None
        return Extent("derived keys"), last_broken_batch

    def _still_in_log(self, log: str, ranges: Mapping[str, tuple[int, int]]) -> dict[str, tuple[int, int]]:
        """Return the part of the ranges that still exists in the log."""
        starts = self._cluster.starts(log)
        return {number: (max(low, starts[int(number)]), high) for number, (low, high) in ranges.items()}

    # Windows after all missing input

    def _complete_windows(self, last_broken_batch: Batch) -> Extent:
        """Return the extent of complete windows: those after the newest event time of the batches up to
        ``last_broken_batch``.
        """
        operators, topic = self._operators, self._flow.streams[0]
        seen_us = last_broken_batch.seen_us.get(topic.name)
        time_fields = {
            field.name
            for field in self._compiled.schema.fields
            if field.kind in (Scalar("time"), Scalar("date"))
        }
        field = next((name for name in self._flow.writes.key if name in time_fields), None)
        is_single_aggregation = operators.aggregates == 1 and not (operators.joins or operators.deduplicates)
        if not is_single_aggregation or field is None or seen_us is None or topic.time is None:
            return NOTHING
        if self._flow.unbounded or len(self._flow.streams) > 1:
            return NOTHING
        log = self._inputs.input(topic).log
        ranges = self._still_in_log(log, input_ranges(self._generation, None, self._through)[log])
        records = self._inputs.records(topic, ranges)
        if records is None:
            return NOTHING
        # Give all existing records that event time, and compute their windows: the last one is incomplete.
        rows_at_seen = self._inputs.rows(records, topic).withColumn(
            topic.time, F.timestamp_micros(F.lit(seen_us))
        )
        value = self._inputs.derived([rows_at_seen])
        text = value_encoder(self._compiled.schema).field_text(F.col("value"), field)
        row = value.agg(F.max(text)).first()
        records.unpersist()
        return NOTHING if row is None or row[0] is None else Extent("later times", field, row[0])

    # Span by span

    def _derive(
        self, after: Batch | None, last_broken_batch: Batch | None, check: ProgressCheck
    ) -> list[DataFrame]:
        """Return the derived rows as DataFrames that are persisted on disk."""
        batches = (batch for batch in self._batches() if after is None or batch.batch > after.batch)
        late = LateCheck(
            self._inputs,
            self._generation,
            self._index,
            self._through,
            last_broken_batch,
            has_watermark=self._compiled.has_watermark,
        )
        persisted = []
        for chunk in _chunks(spans(batches)):
            self._say(
                f"{self._flow.name}: deriving up to batch {chunk[-1].last.batch} of {self._through.batch}"
            )
            persisted.append(self._chunk(chunk, late, check))
        late.close()
        return persisted

    def _chunk(self, chunk: list[BatchSpan], late: LateCheck, check: ProgressCheck) -> DataFrame:
        """Derive the spans of a chunk. Reads the streams once, and computes each table's version for the first span.
        The later versions are computed from it.
        """
        records = {topic.name: self._records(topic, chunk) for topic in self._flow.streams}
        streams = late.without_late_events(records, chunk[0].first.batch, chunk[-1].last, check)
        bases = {
            name: table.last_records(chunk[0].tables[table.log]).persist(StorageLevel.MEMORY_AND_DISK)
            for name, table in self._tables.items()
        }
        parts = [self._span(span, chunk[0], streams, bases) for span in chunk]
        rows = reduce(DataFrame.unionByName, parts).persist(StorageLevel.DISK_ONLY)
        count, size = count_rows_and_bytes(rows)
        check.rows += count
        check.bytes += size
        for frame in (*records.values(), *bases.values()):
            if frame is not None:
                frame.unpersist()
        return rows

    def _records(self, topic: Topic, chunk: list[BatchSpan]) -> DataFrame | None:
        log = self._inputs.input(topic).log
        starts, end = chunk[0].inputs.get(log, {}), chunk[-1].inputs.get(log, {})
        ranges = {number: (starts.get(number, (low, 0))[0], high) for number, (low, high) in end.items()}
        return self._inputs.records(topic, self._still_in_log(log, ranges))

    def _span(
        self,
        span: BatchSpan,
        first: BatchSpan,
        streams: Mapping[str, DataFrame | None],
        bases: Mapping[str, DataFrame],
    ) -> DataFrame:
        frames = []
        for topic in self._flow.reads:
            if topic.kind == "table":
                table = self._tables[topic.name]
                since, offsets = first.tables[table.log], span.tables[table.log]
                base = bases[topic.name]
                frames.append(
                    table.rows(base if since == offsets else table.changed_since(base, since, offsets))
                )
                continue
            records = streams[topic.name]
            if records is None:
                frames.append(self._inputs.empty_input(topic))
                continue
            read = records.where(F.col("batch").between(span.first.batch, span.last.batch))
            frames.append(self._inputs.rows(read, topic))
        return self._inputs.derived(frames)


def _chunks(spans_in_order: Iterator[BatchSpan]) -> Iterator[list[BatchSpan]]:
    while chunk := list(islice(spans_in_order, _SPANS_PER_CHUNK)):
        yield chunk


@dataclass(frozen=True, slots=True)
class BatchSpan:
    """Consecutive batches with the same table versions. One call of the function derives them."""

    inputs: Ranges
    tables: Ends
    first: Batch
    last: Batch


def spans(batches: Iterable[Batch]) -> Iterator[BatchSpan]:
    """Yield the spans in order. ``batches`` has consecutive batches of one generation."""
    span: BatchSpan | None = None
    for batch in batches:
        if span is not None and span.tables == batch.tables:
            span = BatchSpan(_joined(span.inputs, batch.inputs), span.tables, span.first, batch)
            continue
        if span is not None:
            yield span
        span = BatchSpan(batch.inputs, batch.tables, batch, batch)
    if span is not None:
        yield span


def _joined(first: Ranges, second: Ranges) -> Ranges:
    """Return ranges from the start of ``first`` to the end of ``second``, which can have more partitions."""
    return {
        log: {
            number: (first.get(log, {}).get(number, (low, 0))[0], high)
            for number, (low, high) in parts.items()
        }
        for log, parts in second.items()
    }
