"""Decodes the records of a topic into rows, and encodes rows as keys and values, in Spark.

``headrace.model.codec`` defines which values fit a schema. The codecs in this package follow the same rules in Spark
expressions, because calling Python for each row would be too slow. JSON is the only format today. Only
``json_decode`` and ``json_encode`` assume that a value is JSON.

``Decoder`` returns for every record either a row or the reason why the value does not fit. If the topic has upcasters,
Python workers convert the values first; the expressions decode the result.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from headrace.flow.codec.json_decode import JsonDecoder
from headrace.flow.codec.json_encode import JsonEncoder
from headrace.model.declarations import Topic
from headrace.model.errors import ValueDoesNotFit
from headrace.model.rejection import Reason
from headrace.model.schema import Schema
from headrace.model.upcast import Upcaster

__all__ = ["DELETED", "EARLIEST_US", "Decoder", "TimeBounds", "encode", "value_encoder"]

# An earlier event time is rejected, because it comes from a clock that was not set.
EARLIEST_US = 365 * 86_400 * 1_000_000
DELETED = "_deleted"
_RECORD = ("key", "value", "partition", "offset")
_UPCAST, _UPCAST_REASON, _ORIGINAL = "upcast", "upcast_reason", "original"
"""Columns of a topic with upcasters."""


class ValueDecoder(Protocol):
    """Expressions over the column ``value`` and over the columns that the earlier expressions define."""

    @property
    def parsed(self) -> Column:
        """The value with the types of its fields. The other expressions use it as the column ``parsed``."""

    @property
    def row(self) -> Column:
        """The fields of the schema, with defaults. Later expressions use it as the column ``row``."""

    @property
    def checks(self) -> Mapping[str, Column]:
        """Further columns that ``reason`` needs. They are separate columns, so that Spark computes each once."""

    @property
    def reason(self) -> Column:
        """Why a value that is not null does not fit; null if it fits."""


class ValueEncoder(Protocol):
    def value(self, rows: DataFrame) -> Column: ...

    def key(self, names: tuple[str, ...]) -> Column:
        """The key; null if a field of the key is null."""

    def field_text(self, value: Column, name: str) -> Column:
        """One field of an encoded value, as text."""

    def field_texts(self, value: Column, names: Sequence[str]) -> Column:
        """Several fields of an encoded value, as a struct of texts."""


def value_decoder(schema: Schema) -> ValueDecoder:
    return JsonDecoder(schema.fields)


def value_encoder(schema: Schema) -> ValueEncoder:
    return JsonEncoder(schema)


@dataclass(frozen=True, slots=True)
class TimeBounds:
    """How far an event time may be ahead of the log's timestamp of the record."""

    future_us: int = 3_600_000_000


class Decoder:
    """Builds the expressions once per topic, because building them needs many calls to the JVM."""

    def __init__(self, topic: Topic, bounds: TimeBounds) -> None:
        assert topic.schema is not None
        decoder = value_decoder(topic.schema)
        self._upcast = None if topic.upcast is None else _upcast_udf(topic.upcast)
        upcast = [] if topic.upcast is None else [F.col(_ORIGINAL), F.col(_UPCAST_REASON)]
        record = [*(F.col(name) for name in _RECORD), *upcast]
        logged_us = F.unix_micros("timestamp").alias("logged_us")
        value_reason = _value_reason(topic, decoder.reason)
        self._parsed = [*record, logged_us, decoder.parsed.alias("parsed")]
        self._steps = {
            "row": decoder.row,
            "event_us": F.unix_micros(F.col("row")[topic.time]) if topic.time else F.lit(None).cast("long"),
            **decoder.checks,
            "reason": F.coalesce(*upcast[1:], _reason(topic, bounds, value_reason)),
        }
        fits = F.col("reason").isNull() & F.col("value").isNotNull()
        fitting = [F.when(fits, F.col(name)).alias(name) for name in ("row", "event_us")]
        # Spark computes this column only for a query that selects it.
        is_schema = F.coalesce(*upcast[1:], value_reason).isNotNull()
        code = F.when(is_schema, F.lit(Reason.SCHEMA.value)).otherwise(F.lit(Reason.TIME.value))
        reason_code = F.when(F.col("reason").isNotNull(), code).alias("reason_code")
        # A dead letter has the original value.
        original = {"value": F.col(_ORIGINAL).alias("value")} if topic.upcast else {}
        columns = [original.get(name, F.col(name)) for name in (*_RECORD, "logged_us")]
        self._result = [*fitting, F.col("reason"), reason_code, *columns]

    def decode(self, raw: DataFrame) -> DataFrame:
        """Return the columns ``row`` (null if the value does not fit), ``reason`` (a text; null if it fits),
        ``reason_code`` (a ``Reason``), ``event_us``, ``key``, ``value``, ``partition``, ``offset`` and ``logged_us``
        (the log's timestamp of the record). In a table, a null value deletes its key: row and reason are both null.
        """
        if self._upcast is not None:
            raw = _with_upcast_values(raw, self._upcast)
        parsed = raw.select(*self._parsed)
        for name, column in self._steps.items():
            parsed = parsed.withColumn(name, column)
        return parsed.select(*self._result)


def _upcast_udf(upcaster: Upcaster) -> Callable[[Column], Column]:
    """Return a function of a column of values. It calls ``Upcaster.apply`` in Spark's Python workers, for batches of
    Arrow, and returns a struct of the value (null if an upcaster failed) and the reason.
    """

    def apply(values: pa.Array) -> pa.Array:
        upcast_values: list[bytes | None] = []
        reasons: list[str | None] = []
        for raw in values.to_pylist():
            value, reason = None, None
            if raw is not None:
                try:
                    value = upcaster.apply(raw)
                except ValueDoesNotFit as error:
                    reason = error.message
            upcast_values.append(value)
            reasons.append(reason)
        columns = [pa.array(upcast_values, pa.binary()), pa.array(reasons, pa.string())]
        return pa.StructArray.from_arrays(columns, names=["value", "reason"])

    # Declared as not deterministic, so that Spark computes it exactly once for each record.
    # PySpark's type stubs do not have this function.
    functions: Any = F
    udf = functions.arrow_udf(apply, "value binary, reason string")
    applied: Callable[[Column], Column] = udf.asNondeterministic()
    return applied


def _with_upcast_values(raw: DataFrame, upcast: Callable[[Column], Column]) -> DataFrame:
    """Replace the column ``value``, and add the original value and the reason why an upcaster failed."""
    called = raw.withColumn(_UPCAST, upcast(F.col("value")))
    return called.select(
        *(name for name in (*_RECORD, "timestamp") if name != "value"),
        F.col(f"{_UPCAST}.value").alias("value"),
        F.col(f"{_UPCAST}.reason").alias(_UPCAST_REASON),
        F.col("value").alias(_ORIGINAL),
    )


def _value_reason(topic: Topic, reason: Column) -> Column:
    null_reason = "the value is null, and only a table has null values" if topic.kind == "events" else None
    return F.when(F.col("value").isNull(), F.lit(null_reason)).otherwise(reason)


def _reason(topic: Topic, bounds: TimeBounds, reason: Column) -> Column:
    if not topic.time:
        return reason
    time, event_us = F.col("row")[topic.time].cast("string"), F.col("event_us")
    implausible = F.when(event_us < EARLIEST_US, F.concat(F.lit(f"{topic.time} is before 1971: "), time))
    ahead = F.lit(f" is more than {bounds.future_us // 1_000_000} s ahead of the record's own time")
    implausible = implausible.when(
        event_us > F.col("logged_us") + bounds.future_us, F.concat(F.lit(f"{topic.time} "), time, ahead)
    )
    return F.coalesce(reason, implausible)


def encode(
    rows: DataFrame, schema: Schema, key: tuple[str, ...], extra_columns: Sequence[str | Column] = ()
) -> DataFrame:
    """Return ``key`` (null if one of its fields is null), ``value`` and the ``extra_columns``.

    If ``_deleted`` is true in a row, the value is null, which deletes the key in every table and view of the topic. A
    row without a key cannot be written; the caller writes it as a dead letter.
    """
    encoder = value_encoder(schema)
    value = encoder.value(rows)
    if DELETED in rows.columns:
        value = F.when(~F.coalesce(F.col(DELETED), F.lit(False)), value)
    return rows.select(encoder.key(key).alias("key"), value.alias("value"), *extra_columns)
