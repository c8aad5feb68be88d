"""Derives the rows of a few sample records, without a log. ``headrace.testing`` uses it to test one flow.

The same code as in the running flow decodes the records, calls the function and encodes its rows. The records of a
topic are one partition, which decides which of them are late. Only the state is missing: the function is called once
for all records, as for history. So windows and joins that a running flow would still hold open are complete.

The records come in batches, because a table that the flow reads can change between them. Then the function is called
once for consecutive batches with the same table: such a flow has no state.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import groupby
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as T

from headrace.flow.batch_rows import sort_rows
from headrace.flow.codec.codec import Decoder, TimeBounds, encode
from headrace.flow.compile.compiler import Compiled
from headrace.flow.compile.lineage import coordinates, lineage_columns, trace
from headrace.flow.spark_types import local_rows, struct_of
from headrace.flow.tables.current import RECORD_SHAPE
from headrace.model.declarations import LatePolicy, Topic
from headrace.model.rejection import Reason
from headrace.model.schema import Schema

__all__ = ["SampleBatch", "SampleRecord", "SampleRejected", "SampleRows", "derive_sample"]


@dataclass(frozen=True, slots=True)
class SampleRecord:
    key: bytes | None
    value: bytes | None


SampleBatch = Mapping[str, Sequence[SampleRecord]]
"""The records of one batch, by the name of the input topic."""


@dataclass(frozen=True, slots=True)
class SampleRejected:
    """A late record, or a dead record if ``reason`` is set."""

    topic: str
    record: SampleRecord
    reason: Reason | None
    message: str = ""
    """Details of the reason."""
    newest_us: int | None = None
    """The newest event time before a late record."""


@dataclass(slots=True)
class SampleRows:
    written: list[SampleRecord] = field(default_factory=list)
    """What the flow writes, in this order. A row without a key has the key None: the flow writes it as a dead letter.
    A row that deletes its key has the value None.
    """
    rejected: list[SampleRejected] = field(default_factory=list)


def derive_sample(
    spark: SparkSession,
    compiled: Compiled,
    schemas: Mapping[str, Schema],
    batches: Sequence[SampleBatch],
    *,
    logged_at: datetime,
    bounds: TimeBounds,
) -> SampleRows:
    """``schemas`` has the schemas of the input topics. ``logged_at`` is the log's timestamp of every record."""
    result = SampleRows()
    inputs = [
        _Input(
            spark, number, dataclasses.replace(topic, schema=schemas[topic.name]), batches, logged_at, bounds
        )
        for number, topic in enumerate(compiled.flow.reads)
    ]
    for sample_input in inputs:
        policy = compiled.flow.late_policies.get(sample_input.topic.name)
        if policy is not None and compiled.late in ("drop", "side"):
            sample_input.reject_late(policy)
        result.rejected += sample_input.rejected
    for first, last in _spans(inputs, len(batches)):
        frames = [sample_input.frame(first, last) for sample_input in inputs]
        rows = trace(compiled.flow, frames)
        order = lineage_columns(rows)
        table = encode(rows, compiled.schema, compiled.flow.writes.key, order).toArrow()
        sorted_rows = sort_rows(table, ties=compiled.ties) if order else table.sort_by("key")
        keys, values = (sorted_rows.column(name).to_pylist() for name in ("key", "value"))
        result.written += [
            SampleRecord(_bytes(key), _bytes(value)) for key, value in zip(keys, values, strict=True)
        ]
    return result


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else text.encode()


def _spans(inputs: Sequence[_Input], batches: int) -> Iterator[tuple[int, int]]:
    """Yield the first and the last batch of each span, in which no table changes."""
    changes = [any(sample_input.changes_table(batch) for sample_input in inputs) for batch in range(batches)]
    span_of = [sum(changes[: batch + 1]) for batch in range(batches)]
    for _, span in groupby(range(batches), key=span_of.__getitem__):
        members = list(span)
        yield members[0], members[-1]


class _Input:
    """The decoded records of one input topic."""

    def __init__(
        self,
        spark: SparkSession,
        number: int,
        topic: Topic,
        batches: Sequence[SampleBatch],
        logged_at: datetime,
        bounds: TimeBounds,
    ) -> None:
        self.topic = topic
        self.rejected: list[SampleRejected] = []
        self._spark = spark
        self._number = number
        records = [
            (batch, record) for batch, sample in enumerate(batches) for record in sample.get(topic.name, ())
        ]
        self._records = [record for _, record in records]
        self._batches = [batch for batch, _ in records]
        raw = [
            {
                "key": record.key,
                "value": record.value,
                "partition": 0,
                "offset": offset,
                "timestamp": logged_at,
            }
            for offset, record in enumerate(self._records)
        ]
        decoded = Decoder(topic, bounds).decode(local_rows(spark, raw, RECORD_SHAPE))
        self._decoded = decoded.select("row", "partition", "offset", "event_us", "reason", "reason_code")
        self._table = self._decoded.toArrow().sort_by("offset")
        self._event_us: list[int | None] = self._table.column("event_us").to_pylist()
        self._accepted = []
        codes, messages = (self._table.column(name).to_pylist() for name in ("reason_code", "reason"))
        for record, code, message in zip(self._records, codes, messages, strict=True):
            self._accepted.append(code is None)
            if code is not None:
                self.rejected.append(SampleRejected(topic.name, record, Reason(code), message))

    def reject_late(self, policy: LatePolicy) -> None:
        """Reject the late events, as ``headrace.flow.lateness`` does for a partition of the log."""
        newest_us: int | None = None
        for offset, event_us in enumerate(self._event_us):
            if event_us is None:
                continue
            if newest_us is not None and event_us < newest_us - policy.allowed_us:
                self._accepted[offset] = False
                record = self._records[offset]
                self.rejected.append(SampleRejected(self.topic.name, record, None, newest_us=newest_us))
            newest_us = event_us if newest_us is None else max(newest_us, event_us)

    def changes_table(self, batch: int) -> bool:
        return self.topic.kind == "table" and bool(self._offsets(batch))

    def frame(self, first: int, last: int) -> DataFrame:
        """Return the argument of the function: the events of the batches, or the rows of the table after them."""
        if self.topic.kind == "table":
            return self._table_rows(last)
        mask = [
            accepted and first <= batch <= last
            for accepted, batch in zip(self._accepted, self._batches, strict=True)
        ]
        events = self._table.filter(pa.array(mask, pa.bool_())).select(["row", "partition", "offset"])
        shape = T.StructType([self._decoded.schema[name] for name in events.column_names])
        rows = self._spark.createDataFrame(events, shape)
        return rows.select("row.*", *coordinates(self._number))

    def _table_rows(self, last: int) -> DataFrame:
        assert self.topic.schema is not None
        current: dict[bytes | None, Any] = {}
        rows = self._table.column("row").to_pylist()
        for record, batch, accepted, row in zip(
            self._records, self._batches, self._accepted, rows, strict=True
        ):
            if batch > last or not accepted:
                continue
            current.pop(record.key, None)
            if row is not None:
                current[record.key] = row
        return local_rows(self._spark, list(current.values()), struct_of(self.topic.schema.fields))

    def _offsets(self, batch: int) -> list[int]:
        return [offset for offset, of_batch in enumerate(self._batches) if of_batch == batch]
