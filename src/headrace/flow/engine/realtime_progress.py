"""Writes the progress records of a real-time flow, some time after the rows were written.

Spark's own checkpoint has the input offsets that are processed. A progress record covers all input since the previous
progress record. It is written in one transaction with the dead letters. Spark counts records while it processes them.
If no record is dead, these counts are used. Otherwise the input is read again, so that each dead letter is written
once. The input is also read again if the counts are unknown because the driver was killed between Spark's checkpoint
and the progress record.

In real time, Spark's position is the offset after the last record. Offsets after it without a record, usually the end
of a transaction, count as processed too. Otherwise an input that is written in transactions, for example by another
flow, would never be processed completely.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql import functions as F

from headrace.client.generations import generations_of
from headrace.client.records import next_records
from headrace.client.transactional_writer import TransactionalWriter
from headrace.flow.codec.codec import Decoder
from headrace.flow.commit import BatchResult, commit_batch, ranges_of
from headrace.flow.context import FlowContext, FlowOptions
from headrace.flow.flow_state import FlowState
from headrace.flow.inputs import count_records, history
from headrace.flow.ownership import expect_driver
from headrace.flow.realtime_rows import rows_with_source
from headrace.flow.rejected import Counts, RejectedRecord, read_rejected
from headrace.model.declarations import Topic
from headrace.model.progress import Ranges

_ROWS = pa.schema([("key", pa.string()), ("value", pa.string())])

__all__ = ["BatchTotals", "RealtimeProgress", "rows_per_progress_max"]


@dataclass(frozen=True, slots=True)
class BatchTotals:
    """Spark's counts, summed over some batches."""

    rows_in: int = 0
    bytes: int = 0
    dead: int = 0
    rows_out: int = 0
    keyless: int = 0

    def __add__(self, other: BatchTotals) -> BatchTotals:
        return BatchTotals(
            self.rows_in + other.rows_in,
            self.bytes + other.bytes,
            self.dead + other.dead,
            self.rows_out + other.rows_out,
            self.keyless + other.keyless,
        )


class RealtimeProgress:
    def __init__(
        self,
        context: FlowContext,
        state: FlowState,
        writer: TransactionalWriter,
        topic: Topic,
        decoder: Decoder,
        rows_max: int,
    ) -> None:
        """``rows_max`` is the number of records that may be read for one progress record, estimated from the size of
        the next records.
        """
        self._spark = context.spark
        self._cluster = context.cluster
        self._compiled = context.compiled
        self._flow = context.flow
        self._options = context.options
        self._topic = topic
        self._decoder = decoder
        self._writer = writer
        self._state = state
        self._rows_max = rows_max
        (self._input,) = state.generation.inputs

    def record(
        self, planned_ends: dict[str, dict[str, int]], totals: BatchTotals | None, stop: threading.Event
    ) -> bool:
        """Record that the input is processed up to ``planned_ends``.

        ``totals`` has the counts since the last progress record, or None if they are unknown. Returns False if ``stop``
        was set before all progress was recorded; the next start then records the rest.
        """
        inputs = ranges_of(self._state, self._to_next_records(planned_ends))
        if not _offsets(inputs):
            self._expect_current_driver()
        elif totals is not None and not totals.dead and not totals.keyless:
            self._commit(inputs, Counts(totals.rows_in, bytes=totals.bytes), sent=totals.rows_out)
        else:
            for part in _parts(inputs, rows_per_progress_max(totals, self._options, self._rows_max)):
                if stop.is_set():
                    return False
                self._count_again(part)
        return True

    def _to_next_records(self, planned_ends: dict[str, dict[str, int]]) -> dict[str, dict[str, int]]:
        log = self._input.log
        last_ranges = self._state.last.inputs.get(log, {}) if self._state.last else {}
        offsets = {
            int(number): max(end, last_ranges[number][1] if number in last_ranges else 0)
            for number, end in planned_ends[log].items()
        }
        following = next_records(self._cluster, log, offsets)
        return {log: {str(number): offset for number, offset in following.items()}}

    def _expect_current_driver(self) -> None:
        """Check that no other driver opened the flow, and that no other generation replaced this one. Without a write,
        the log cannot reject this driver.
        """
        generations = generations_of(self._cluster, self._flow)
        if generations is not None:
            generations.expect(self._state.generation.generation)
        expect_driver(self._cluster, self._flow, self._state.progress_topic, self._state.driver_id)

    def _count_again(self, inputs: Ranges) -> None:
        log = self._input.log
        part = {number: bounds for number, bounds in inputs[log].items() if bounds[0] < bounds[1]}
        decoded = self._decoder.decode(history(self._spark, self._cluster, log, part))
        counted = count_records(decoded, None)
        rows = rows_with_source(decoded, self._compiled)
        (count,) = rows.agg(F.count(F.lit(1)), F.count_if(F.col("key").isNull())).collect()
        keyless = [row["value"] for row in rows.where(F.col("key").isNull()).collect()] if count[1] else []
        counts = Counts(counted["rows"], dead=counted["dead"], bytes=counted["bytes"] or 0)
        self._commit(inputs, counts, sent=count[0] - len(keyless), keyless=keyless)

    def _rejected(self, counts: Counts, inputs: Ranges) -> Iterator[RejectedRecord]:
        if counts.rejected:
            log = self._input.log
            yield from read_rejected(
                self._spark,
                self._cluster,
                self._decoder,
                log,
                inputs[log],
                counts.average_bytes,
            )

    def _commit(
        self, inputs: Ranges, counts: Counts, *, sent: int, keyless: Sequence[str | None] = ()
    ) -> None:
        last = self._state.last
        rows = pa.table([[None] * len(keyless), list(keyless)], schema=_ROWS)
        result = BatchResult(
            number=last.batch + 1 if last else 0,
            pieces=lambda: [rows],
            inputs=inputs,
            watermark_us=None,
            counts={self._topic.name: counts},
            rejected=lambda: self._rejected(counts, inputs),
            sent=sent,
        )
        self._state.last = commit_batch(self._cluster, self._writer, self._flow, self._state, result)


def rows_per_progress_max(totals: BatchTotals | None, options: FlowOptions, default: int) -> int:
    """Return how many records may be read for one progress record, estimated from the size of processed records."""
    if totals is None or not totals.rows_in:
        return default
    average_bytes = max(1, totals.bytes // totals.rows_in)
    return max(1, min(options.max_rows, options.max_bytes // average_bytes))


def _offsets(inputs: Ranges) -> int:
    return sum(high - low for parts in inputs.values() for low, high in parts.values())


def _parts(inputs: Ranges, rows_max: int) -> Iterator[Ranges]:
    """Yield consecutive parts with at most ``rows_max`` offsets each. Every part has all partitions."""
    next_offsets = {log: {number: low for number, (low, _) in parts.items()} for log, parts in inputs.items()}
    while any(
        next_offsets[log][number] < high
        for log, parts in inputs.items()
        for number, (_, high) in parts.items()
    ):
        rows_left, part = rows_max, Ranges()
        for log, parts in inputs.items():
            part[log] = {}
            for number, (_, high) in parts.items():
                low = next_offsets[log][number]
                end = min(high, low + rows_left)
                rows_left -= end - low
                part[log][number] = (low, end)
                next_offsets[log][number] = end
        yield part
