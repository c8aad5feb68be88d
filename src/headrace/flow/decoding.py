"""From the bytes of a topic to rows of its schema, and the reason why a value is none.

``decode`` gives every record of the log a row (``row``), or the reason why it has none (``reason``), and keeps its
place. It is the same over the live stream and over history, so that both leave out the same records. Spark's own
parser is lenient; what it would let pass in silence is looked for here: bytes that are not UTF-8, lone surrogates, a
key that is there twice, a decimal with too many digits, an absurd event time.

A value is parsed once. Twin keys are excluded by counting where a record is as expected (every field there, as
many keys as fields); only others are looked at key by key.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from headrace.flow.types import parsed_struct, type_of
from headrace.model.kinds import Choice, Digits, Field, Kind, Many, Named, Plain, Record
from headrace.model.topic import Topic

__all__ = ["EARLIEST_US", "Decoder", "TimeBounds", "decode"]

# Event times before are those of clocks that were never set, and of nothing that a stream would hold.
EARLIEST_US = 365 * 86_400 * 1_000_000
_CORRUPT = "_headrace_corrupt"
# Half of a pair without its other half; an even number of backslashes before it makes it plain text.
_LONE_SURROGATE = (
    r"(?i)(?<!\\)(?:\\\\)*\\ud[89ab][0-9a-f]{2}(?!\\ud[c-f][0-9a-f]{2})"
    r"|(?<!\\ud[89ab][0-9a-f]{2})(?<!\\)(?:\\\\)*\\ud[c-f][0-9a-f]{2}"
)
_SHOWN = 60
_OPTIONS = {
    "mode": "PERMISSIVE",
    "columnNameOfCorruptRecord": _CORRUPT,
    "allowNonNumericNumbers": "false",
    "timeZone": "UTC",
}


@dataclass(frozen=True, slots=True)
class TimeBounds:
    """How far an event time may be ahead of the time that its record has in the log."""

    future_us: int = 3_600_000_000


def decode(raw: DataFrame, topic: Topic, bounds: TimeBounds) -> DataFrame:
    """Columns ``row`` (null where it does not fit), ``reason`` (null where it does), ``event_us``, ``key``, ``value``,
    ``partition``, ``offset``. A null value has neither row nor reason in a table, where it deletes.
    """
    return Decoder(topic, bounds).decode(raw)


class Decoder:
    """The expressions of a topic's decoding, made once: they are many, and each is a call to the JVM."""

    def __init__(self, topic: Topic, bounds: TimeBounds) -> None:
        assert topic.schema is not None
        fields = topic.schema.fields
        parsed = T.StructType([*parsed_struct(fields).fields, T.StructField(_CORRUPT, T.StringType())])
        told = F.from_json(F.col("value").cast("string"), parsed, _OPTIONS)
        place = [F.col(name) for name in ("key", "value", "partition", "offset")]
        self._parsed = [*place, F.unix_micros("timestamp").alias("logged_us"), told.alias("told")]
        row = F.struct(*(_converted(F.col("told")[one.name], one).alias(one.name) for one in fields))
        self._converted = row
        event_us = F.unix_micros(F.col("row")[topic.time]) if topic.time else F.lit(None).cast("long")
        self._event_us = event_us
        self._reason = _reason(topic, fields, bounds)
        fits = F.col("reason").isNull() & F.col("value").isNotNull()
        fitting = [F.when(fits, F.col("row")).alias("row"), F.when(fits, F.col("event_us")).alias("event_us")]
        self._judged = [*fitting, F.col("reason"), *place]

    def decode(self, raw: DataFrame) -> DataFrame:
        told = raw.select(*self._parsed).withColumn("row", self._converted)
        return (
            told.withColumn("event_us", self._event_us)
            .withColumn("reason", self._reason)
            .select(*self._judged)
        )


def _converted(told: Column, field: Field) -> Column:
    """The value as its own type; null where it does not fit, and the default where it is absent."""
    value = _converted_kind(told, field.kind)
    if field.default is None or isinstance(field.kind, (Many, Named, Record)):
        return value
    return F.when(told.isNull(), F.lit(field.default).cast(type_of(field.kind))).otherwise(value)


def _converted_kind(told: Column, kind: Kind) -> Column:
    match kind:
        case Digits():
            return told.try_cast(type_of(kind))
        case Many(of, _) if _needs_conversion(of):
            return F.transform(told, lambda one: _converted_kind(one, of))
        case Named(of, _) if _needs_conversion(of):
            return F.transform_values(told, lambda _, one: _converted_kind(one, of))
        case Record(fields) if any(_needs_conversion(one.kind) or one.default is not None for one in fields):
            made = F.struct(*(_converted(told[one.name], one).alias(one.name) for one in fields))
            return F.when(told.isNotNull(), made)
        case _:
            return told


def _needs_conversion(kind: Kind) -> bool:
    match kind:
        case Digits():
            return True
        case Many(of, _) | Named(of, _):
            return _needs_conversion(of)
        case Record(fields):
            return any(_needs_conversion(one.kind) or one.default is not None for one in fields)
        case _:
            return False


def _reason(topic: Topic, fields: tuple[Field, ...], bounds: TimeBounds) -> Column:
    value, told = F.col("value"), F.col("told")
    text = value.cast("string")
    absent = (
        F.lit("the value is null, which only a table's may be") if topic.kind == "events" else F.lit(None)
    )
    checks = F.when(value.isNull(), absent.cast("string"))
    checks = checks.when(~F.is_valid_utf8(text), F.lit("the value is not UTF-8"))
    checks = checks.when(
        told.isNull() | told[_CORRUPT].isNotNull(),
        F.lit("the value is not a JSON object with the fields of the schema"),
    )
    for one in fields:
        checks = _check(checks, told[one.name], F.col("row")[one.name], one.name, one)
    checks = checks.when(
        text.contains("\\u") & text.rlike(_LONE_SURROGATE), F.lit("the value has half of a surrogate pair")
    )
    checks = checks.when(_has_twins(text, told, fields), F.lit("the value has a field twice"))
    if topic.time:
        event_us = F.col("event_us")
        checks = checks.when(
            event_us < EARLIEST_US,
            F.concat(F.lit(f"{topic.time} is absurd: "), F.col("row")[topic.time].cast("string")),
        )
        ahead = F.lit(f" is more than {bounds.future_us // 1_000_000} s ahead of the record's own time")
        checks = checks.when(
            event_us > F.col("logged_us") + bounds.future_us,
            F.concat(F.lit(f"{topic.time} "), F.col("row")[topic.time].cast("string"), ahead),
        )
    return checks


def _check(checks: Column, told: Column, row: Column, path: str, field: Field) -> Column:
    """Why this field does not fit, if it does not; ``told`` is as parsed, ``row`` as converted."""
    if not field.optional:
        checks = checks.when(told.isNull(), F.lit(f"field {path} is missing or null"))
    return _check_kind(checks, told, row, path, field.kind)


def _check_kind(checks: Column, told: Column, row: Column, path: str, kind: Kind) -> Column:
    match kind:
        case Digits(precision, scale):
            return checks.when(
                told.isNotNull() & (row.isNull() | (row != told)),
                F.concat(
                    F.lit(f"field {path} does not fit {precision} digits with {scale} behind the point: "),
                    F.substring(told.cast("string"), 1, _SHOWN),
                ),
            )
        case Choice(values):
            return checks.when(
                told.isNotNull() & ~told.isin(*values),
                F.concat(
                    F.lit(f"field {path} is none of {', '.join(values)}: "),
                    F.substring(told.cast("string"), 1, _SHOWN),
                ),
            )
        case Record(fields):
            for one in fields:
                inner = f"{path}.{one.name}"
                if not one.optional:
                    checks = checks.when(
                        told.isNotNull() & told[one.name].isNull(), F.lit(f"field {inner} is missing or null")
                    )
                checks = _check_kind(checks, told[one.name], row[one.name], inner, one.kind)
            return checks
        case Many(of, optional):
            bad = F.exists(told, lambda one: _bad(one, of, optional))
            return checks.when(told.isNotNull() & bad, F.lit(f"an element of {path} does not fit"))
        case Named(of, optional):
            bad = F.exists(F.map_values(told), lambda one: _bad(one, of, optional))
            return checks.when(told.isNotNull() & bad, F.lit(f"a value of {path} does not fit"))
        case Plain():
            return checks
    raise AssertionError(kind)


def _bad(told: Column, kind: Kind, optional: bool) -> Column:
    """The same for what is inside a list or a map, where a path would say little."""
    absent = F.lit(False) if optional else told.isNull()
    match kind:
        case Digits():
            row = told.try_cast(type_of(kind))
            return absent | (told.isNotNull() & (row.isNull() | (row != told)))
        case Choice(values):
            return absent | (told.isNotNull() & ~told.isin(*values))
        case Record(fields):
            inside = reduce(
                lambda so_far, one: so_far | _bad(told[one.name], one.kind, one.optional),
                fields,
                F.lit(False),
            )
            return absent | (told.isNotNull() & inside)
        case Many(of, inner):
            return absent | (told.isNotNull() & F.exists(told, lambda one: _bad(one, of, inner)))
        case Named(of, inner):
            return absent | (
                told.isNotNull() & F.exists(F.map_values(told), lambda one: _bad(one, of, inner))
            )
        case Plain():
            return absent
    raise AssertionError(kind)


def _has_twins(text: Column, told: Column, fields: tuple[Field, ...]) -> Column:
    keys = F.json_object_keys(text)
    looked_up = F.size(keys) != F.size(F.array_distinct(keys))
    if any(isinstance(one.kind, (Many, Named, Record)) for one in fields):
        return looked_up
    # Every key ends in `":`, unless there is white space in between, and inside of a string the quote has a backslash
    # before it. So where all fields are there and there are as many such ends as fields, each is there once.
    colons = (F.length(text) - F.length(F.replace(text, F.lit('":'), F.lit("")))) / 2
    spaced = reduce(
        lambda so_far, gap: so_far | text.contains(gap),
        ('" :', '"  ', '"\t', '"\n', '"\r'),
        F.lit(False),
    )
    there = reduce(
        lambda so_far, one: so_far & (told[one.name].isNotNull() | text.contains(f'"{one.name}":null')),
        fields,
        F.lit(True),
    )
    return F.when((colons == len(fields)) & ~spaced & there, F.lit(False)).otherwise(looked_up)
