"""From the bytes of a topic to rows of its schema, and the reason why a value is none.

``decode`` gives every record of the log a row (``row``), or the reason why it has none (``reason``), and keeps its
place. It is the same over the live stream and over history, so that both leave out the same records. What fits is what
``headrace.model.values`` says; Spark's own parser is far more lenient, and alters what it takes.

So a value is parsed once by Spark, into the types of its fields, and its text is held against how such a value is
usually written (``canonical``). Most values are written so, and need no other look; others are looked at with
care (``careful``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from headrace.flow.canonical import canonical
from headrace.flow.careful import careful, look
from headrace.flow.types import parsed_struct, type_of
from headrace.model.kinds import Field, Kind, Many, Named, Record
from headrace.model.topic import Topic

__all__ = ["EARLIEST_US", "Decoder", "TimeBounds"]

# Event times before are those of clocks that were never set, and of nothing that a stream would hold.
EARLIEST_US = 365 * 86_400 * 1_000_000
_CORRUPT = "_headrace_corrupt"
_OPTIONS = {
    "mode": "PERMISSIVE",
    "columnNameOfCorruptRecord": _CORRUPT,
    "allowSingleQuotes": "false",
    "timeZone": "UTC",
}


@dataclass(frozen=True, slots=True)
class TimeBounds:
    """How far an event time may be ahead of the time that its record has in the log."""

    future_us: int = 3_600_000_000


class Decoder:
    """The expressions of a topic's decoding, made once: they are many, and each is a call to the JVM."""

    def __init__(self, topic: Topic, bounds: TimeBounds) -> None:
        assert topic.schema is not None
        fields = topic.schema.fields
        parsed = T.StructType([*parsed_struct(fields).fields, T.StructField(_CORRUPT, T.StringType())])
        text, told = F.col("value").cast("string"), F.col("told")
        place = [F.col(name) for name in ("key", "value", "partition", "offset")]
        logged_us = F.unix_micros("timestamp").alias("logged_us")
        self._parsed = [*place, logged_us, F.from_json(text, parsed, _OPTIONS).alias("told")]
        is_read = told.isNotNull() & told[_CORRUPT].isNull()
        is_sure = is_read & F.is_valid_utf8(text) & text.rlike(canonical(fields))
        # Each is a step of its own, so that it is computed once.
        self._steps = {
            "row": F.struct(*(_converted(told[one.name], one).alias(one.name) for one in fields)),
            "event_us": F.unix_micros(F.col("row")[topic.time]) if topic.time else F.lit(None).cast("long"),
            "sure": is_sure | F.col("value").isNull(),
            "looked": F.when(~F.col("sure") & F.is_valid_utf8(text), look(text)),
            "reason": _reason(topic, fields, bounds, is_read),
        }
        fits = F.col("reason").isNull() & F.col("value").isNotNull()
        fitting = [F.when(fits, F.col(name)).alias(name) for name in ("row", "event_us")]
        self._judged = [*fitting, F.col("reason"), *place, F.col("logged_us")]

    def decode(self, raw: DataFrame) -> DataFrame:
        """Columns ``row`` (null where it does not fit), ``reason`` (null where it does), ``event_us``, ``key``, ``value``,
        ``partition``, ``offset``, ``logged_us`` (the time of the record). A null value has neither row nor reason in a
        table, where it deletes.
        """
        told = raw.select(*self._parsed)
        for name, column in self._steps.items():
            told = told.withColumn(name, column)
        return told.select(*self._judged)


def _converted(told: Column, field: Field) -> Column:
    """The value, and the default where it is absent."""
    value = _converted_kind(told, field.kind)
    if field.default is None:
        return value
    return F.when(told.isNull(), _literal(field.default, field.kind)).otherwise(value)


def _literal(value: Any, kind: Kind) -> Column:
    match kind:
        case Many(of, _):
            made = F.array(*(_literal(one, of) for one in value))
        case Named(of, _):
            pairs = [part for name, one in value.items() for part in (F.lit(name), _literal(one, of))]
            made = F.create_map(*pairs)
        case _:
            made = F.lit(value)
    return made.cast(type_of(kind))


def _converted_kind(told: Column, kind: Kind) -> Column:
    match kind:
        case Many(of, _) if _has_defaults(of):
            return F.transform(told, lambda one: _converted_kind(one, of))
        case Named(of, _) if _has_defaults(of):
            return F.transform_values(told, lambda _, one: _converted_kind(one, of))
        case Record(fields) if _has_defaults(kind):
            made = F.struct(*(_converted(told[one.name], one).alias(one.name) for one in fields))
            return F.when(told.isNotNull(), made)
        case _:
            return told


def _has_defaults(kind: Kind) -> bool:
    match kind:
        case Many(of, _) | Named(of, _):
            return _has_defaults(of)
        case Record(fields):
            return any(one.default is not None or _has_defaults(one.kind) for one in fields)
        case _:
            return False


def _reason(topic: Topic, fields: tuple[Field, ...], bounds: TimeBounds, is_read: Column) -> Column:
    value, text = F.col("value"), F.col("value").cast("string")
    absent = "the value is null, which only a table's may be" if topic.kind == "events" else None
    checks = (
        F.when(value.isNull(), F.lit(absent))
        .when(F.col("sure"), F.lit(None))
        .when(~F.is_valid_utf8(text), F.lit("not UTF-8"))
        .otherwise(
            F.coalesce(
                careful(text, F.col("looked"), fields),
                F.when(~is_read, F.lit("not an object with the fields of the schema")),
            )
        )
    )
    if not topic.time:
        return checks
    time, event_us = F.col("row")[topic.time].cast("string"), F.col("event_us")
    absurd = F.when(event_us < EARLIEST_US, F.concat(F.lit(f"{topic.time} is absurd: "), time))
    ahead = F.lit(f" is more than {bounds.future_us // 1_000_000} s ahead of the record's own time")
    absurd = absurd.when(
        event_us > F.col("logged_us") + bounds.future_us, F.concat(F.lit(f"{topic.time} "), time, ahead)
    )
    return F.coalesce(checks, absurd)
