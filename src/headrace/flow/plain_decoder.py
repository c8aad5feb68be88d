"""Records of a topic decoded by the plain-Python codec, in Spark's Python workers.

A proof must not read its input by the code that it checks. The running flow decodes by expressions of Spark
(``headrace.flow.decoding``); here every value goes through ``headrace.model.values``, and event times are judged anew.
Both follow the rule on that page, and share no code for it.

    value of a record  ->  row            of the types that the function expects; null where the value does not fit
                           reason         why it does not fit; null where it does
                           event_us       the event time, where the topic has one
                           batch          the number of the batch that has read it, where batches are known
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

from headrace.flow.batch_index import Lookup
from headrace.flow.types import parsed_struct
from headrace.model.errors import ValueDoesNotFit
from headrace.model.kinds import Kind, Many, Named, Record
from headrace.model.topic import Topic
from headrace.model.values import Codec

__all__ = ["decode_plainly"]

_YEAR_US = 365 * 86_400 * 1_000_000
"""The end of 1970: earlier event times are those of clocks that were never set."""
_PLACE = ["partition", "offset"]
_Convert = Callable[[Any], Any]


def decode_plainly(
    raw: DataFrame,
    topic: Topic,
    future_us: int,
    *,
    batches: Lookup | None = None,
    beside: tuple[str, ...] = (),
) -> DataFrame:
    """Columns ``row``, ``reason``, ``event_us``, ``partition``, ``offset``, ``batch`` where ``batches`` are given, and
    those of ``raw`` that are to be kept ``beside`` them. A null value has neither row nor reason in a table, where it
    deletes.
    """
    assert topic.schema is not None
    kept = [raw.schema[name] for name in (*_PLACE, *beside)]
    decoded = [
        T.StructField("row", parsed_struct(topic.schema.fields)),
        T.StructField("reason", T.StringType()),
        T.StructField("event_us", T.LongType()),
    ]
    if batches is not None:
        decoded.append(T.StructField("batch", T.LongType(), False))
    shape = T.StructType([*decoded, *kept])
    work = _Work(topic, future_us, batches, tuple(one.name for one in kept), shape)
    read = raw.select("value", F.unix_micros("timestamp").alias("logged_us"), *(one.name for one in kept))
    return read.mapInArrow(work.run, shape)


@dataclass(frozen=True, slots=True)
class _Work:
    """What is sent to the workers."""

    topic: Topic
    future_us: int
    batches: Lookup | None
    kept: tuple[str, ...]
    shape: T.StructType

    def run(self, records: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        schema = to_arrow_schema(self.shape, timezone="UTC")
        rows = _Rows(self.topic, self.future_us, schema.field("row").type)
        for some in records:
            columns = rows.decode(some.column("value"), some.column("logged_us"))
            if self.batches is not None:
                places = (some.column(name).to_pylist() for name in _PLACE)
                columns.append(pa.array(self.batches.batches_of(*places), pa.int64()))
            columns += [some.column(name) for name in self.kept]
            yield pa.RecordBatch.from_arrays(columns, schema=schema)


class _Rows:
    def __init__(self, topic: Topic, future_us: int, row_type: pa.StructType) -> None:
        assert topic.schema is not None
        self._decode = Codec(topic.schema).decode
        self._deletes = topic.kind == "table"
        self._fields = [(one.name, _to_arrow(one.kind)) for one in topic.schema.fields]
        self._nothing = dict.fromkeys(one.name for one in topic.schema.fields)
        self._types = list(row_type)
        self._time = topic.time
        self._future_us = future_us

    def decode(self, values: pa.Array, logged_us: pa.Array) -> list[pa.Array]:
        """``row``, ``reason`` and ``event_us``."""
        rows: list[dict[str, Any] | None] = []
        reasons: list[str | None] = []
        for value in values.to_pylist():
            row, reason = self._judge(value)
            rows.append(row)
            reasons.append(reason)
        times = self._judge_times(rows, reasons, logged_us.to_pylist())
        return [self._structs(rows), pa.array(reasons, pa.string()), times]

    def _judge(self, value: bytes | None) -> tuple[dict[str, Any] | None, str | None]:
        if value is None:
            return None, None if self._deletes else "the value is null, and only a table has null values"
        try:
            return self._decode(value), None
        except ValueDoesNotFit as error:
            return None, str(error)

    def _judge_times(
        self, rows: list[dict[str, Any] | None], reasons: list[str | None], logged_us: list[int]
    ) -> pa.Array:
        if self._time is None:
            return pa.nulls(len(rows), pa.int64())
        moments = pa.array(
            [None if row is None else row[self._time] for row in rows], pa.timestamp("us", tz="UTC")
        )
        times = moments.cast(pa.int64()).to_pylist()
        for at, event_us in enumerate(times):
            if event_us is None:
                continue
            if event_us < _YEAR_US:
                reasons[at] = f"{self._time} is before 1971"
            elif event_us > logged_us[at] + self._future_us:
                reasons[at] = f"{self._time} is too far ahead of the time at which the log took the record"
            else:
                continue
            rows[at] = times[at] = None
        return pa.array(times, pa.int64())

    def _structs(self, rows: list[dict[str, Any] | None]) -> pa.StructArray:
        lacking = pa.array([row is None for row in rows], pa.bool_())
        there = [self._nothing if row is None else row for row in rows]
        arrays = []
        for (name, convert), kind in zip(self._fields, self._types, strict=True):
            column = [row[name] for row in there]
            if convert is not None:
                column = [None if one is None else convert(one) for one in column]
            arrays.append(pa.array(column, kind.type))
        return pa.StructArray.from_arrays(arrays, fields=self._types, mask=lacking)


def _to_arrow(kind: Kind) -> _Convert | None:
    """From a value of the codec to what Arrow takes, where that is something else: a map is a list of pairs."""
    match kind:
        case Many(of, _):
            element = _to_arrow(of)
            return element and functools.partial(_convert_list, element)
        case Named(of, _):
            return functools.partial(_convert_map, _to_arrow(of) or _unchanged)
        case Record(fields):
            parts = [(one.name, part) for one in fields if (part := _to_arrow(one.kind)) is not None]
            return functools.partial(_convert_record, parts) if parts else None
        case _:
            return None


def _unchanged(found: Any) -> Any:
    return found


def _convert_list(convert: _Convert, found: list[Any]) -> list[Any]:
    return [None if one is None else convert(one) for one in found]


def _convert_map(convert: _Convert, found: dict[str, Any]) -> list[tuple[str, Any]]:
    return [(name, None if one is None else convert(one)) for name, one in found.items()]


def _convert_record(parts: list[tuple[str, _Convert]], found: dict[str, Any]) -> dict[str, Any]:
    return found | {name: convert(found[name]) for name, convert in parts if found[name] is not None}
