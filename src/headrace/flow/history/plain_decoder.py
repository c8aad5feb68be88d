"""Decodes records with the plain-Python codec, in Spark's Python workers.

``verify`` must not read its input with the code that it checks. The running flow decodes with Spark expressions
(``headrace.flow.codec``). This module decodes every value with ``headrace.model.codec`` and checks event times itself.
Both follow the same rules but share no code.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T
from pyspark.sql.pandas.types import to_arrow_schema

from headrace.flow.history.progress_check import Lookup
from headrace.flow.spark_types import parsed_struct
from headrace.model.codec.codec import value_decoder
from headrace.model.declarations import Topic
from headrace.model.errors import ValueDoesNotFit
from headrace.model.kinds import Kind, List, Map, Record

__all__ = ["plain_decode"]

_YEAR_US = 365 * 86_400 * 1_000_000
"""The end of 1970. Earlier event times come from clocks that were not set."""
_OFFSET = ["partition", "offset"]
_Convert = Callable[[Any], Any]


def plain_decode(
    raw: DataFrame,
    topic: Topic,
    future_us: int,
    *,
    batches: Lookup | None = None,
    extra_columns: tuple[str, ...] = (),
) -> DataFrame:
    """Return the columns ``row``, ``reason``, ``event_us``, ``partition``, ``offset``, ``batch`` (if ``batches`` is
    set), and the ``extra_columns`` of ``raw``. In a table, a null value deletes its key: row and reason are both
    null.
    """
    assert topic.schema is not None
    extra_fields = [raw.schema[name] for name in (*_OFFSET, *extra_columns)]
    decoded = [
        T.StructField("row", parsed_struct(topic.schema.fields)),
        T.StructField("reason", T.StringType()),
        T.StructField("event_us", T.LongType()),
    ]
    if batches is not None:
        decoded.append(T.StructField("batch", T.LongType(), False))
    shape = T.StructType([*decoded, *extra_fields])
    work = _Decode(topic, future_us, batches, tuple(extra_field.name for extra_field in extra_fields), shape)
    read = raw.select(
        "value",
        F.unix_micros("timestamp").alias("logged_us"),
        *(extra_field.name for extra_field in extra_fields),
    )
    return read.mapInArrow(work.run, shape)


@dataclass(frozen=True, slots=True)
class _Decode:
    """Runs in Spark's workers. A class and not a closure, because Spark pickles it."""

    topic: Topic
    future_us: int
    batches: Lookup | None
    extra_fields: tuple[str, ...]
    shape: T.StructType

    def run(self, records: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        schema = to_arrow_schema(self.shape, timezone="UTC")
        rows = _Rows(self.topic, self.future_us, schema.field("row").type)
        for record_batch in records:
            columns = rows.decode(record_batch.column("value"), record_batch.column("logged_us"))
            if self.batches is not None:
                offsets = (record_batch.column(name).to_pylist() for name in _OFFSET)
                columns.append(pa.array(self.batches.batches_of(*offsets), pa.int64()))
            columns += [record_batch.column(name) for name in self.extra_fields]
            yield pa.RecordBatch.from_arrays(columns, schema=schema)


class _Rows:
    def __init__(self, topic: Topic, future_us: int, row_type: pa.StructType) -> None:
        assert topic.schema is not None
        self._decode = value_decoder(topic.schema, topic.upcast)
        self._deletes = topic.kind == "table"
        self._fields = [(field.name, _to_arrow(field.kind)) for field in topic.schema.fields]
        self._null_row = dict.fromkeys(field.name for field in topic.schema.fields)
        self._types = list(row_type)
        self._time = topic.time
        self._future_us = future_us

    def decode(self, values: pa.Array, logged_us: pa.Array) -> list[pa.Array]:
        """Return the columns ``row``, ``reason`` and ``event_us``."""
        rows: list[dict[str, Any] | None] = []
        reasons: list[str | None] = []
        for value in values.to_pylist():
            row, reason = self._decode_value(value)
            rows.append(row)
            reasons.append(reason)
        event_times = self._check_times(rows, reasons, logged_us.to_pylist())
        return [self._structs(rows), pa.array(reasons, pa.string()), event_times]

    def _decode_value(self, value: bytes | None) -> tuple[dict[str, Any] | None, str | None]:
        if value is None:
            return None, None if self._deletes else "the value is null, and only a table has null values"
        try:
            return self._decode(value), None
        except ValueDoesNotFit as error:
            return None, str(error)

    def _check_times(
        self, rows: list[dict[str, Any] | None], reasons: list[str | None], logged_us: list[int]
    ) -> pa.Array:
        if self._time is None:
            return pa.nulls(len(rows), pa.int64())
        times = pa.array(
            [None if row is None else row[self._time] for row in rows], pa.timestamp("us", tz="UTC")
        )
        event_times = times.cast(pa.int64()).to_pylist()
        for index, event_us in enumerate(event_times):
            if event_us is None:
                continue
            if event_us < _YEAR_US:
                reasons[index] = f"{self._time} is before 1971"
            elif event_us > logged_us[index] + self._future_us:
                reasons[index] = f"{self._time} is too far ahead of the log's timestamp of the record"
            else:
                continue
            rows[index] = event_times[index] = None
        return pa.array(event_times, pa.int64())

    def _structs(self, rows: list[dict[str, Any] | None]) -> pa.StructArray:
        is_null = pa.array([row is None for row in rows], pa.bool_())
        filled = [self._null_row if row is None else row for row in rows]
        arrays = []
        for (name, convert), kind in zip(self._fields, self._types, strict=True):
            column = [row[name] for row in filled]
            if convert is not None:
                column = [None if item is None else convert(item) for item in column]
            arrays.append(pa.array(column, kind.type))
        return pa.StructArray.from_arrays(arrays, fields=self._types, mask=is_null)


def _to_arrow(kind: Kind) -> _Convert | None:
    """Return a function that converts a value of the codec to a value for Arrow, in which a map is a list of
    pairs. None if Arrow accepts the codec's values unchanged.
    """
    match kind:
        case List(of, _):
            element = _to_arrow(of)
            return element and functools.partial(_convert_list, element)
        case Map(of, _):
            return functools.partial(_convert_map, _to_arrow(of) or _unchanged)
        case Record(fields):
            parts = [(field.name, part) for field in fields if (part := _to_arrow(field.kind)) is not None]
            return functools.partial(_convert_record, parts) if parts else None
        case _:
            return None


def _unchanged(value: Any) -> Any:
    return value


def _convert_list(convert: _Convert, value: list[Any]) -> list[Any]:
    return [None if element is None else convert(element) for element in value]


def _convert_map(convert: _Convert, value: dict[str, Any]) -> list[tuple[str, Any]]:
    return [(name, None if element is None else convert(element)) for name, element in value.items()]


def _convert_record(parts: list[tuple[str, _Convert]], value: dict[str, Any]) -> dict[str, Any]:
    return value | {name: convert(value[name]) for name, convert in parts if value[name] is not None}
