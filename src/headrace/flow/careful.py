"""A value that is not written as usual, looked at with care: the reason why it does not fit, if it does not.

Spark's parser reads the first value of a text and takes no notice of what follows; of two fields of one name it takes
the last; it makes text of whatever is where text should be, rounds exact numbers, and reads times in many ways. Here
the same text is read as a variant, which keeps the kind that was written, and held against the schema part by part. It
costs several times what reading does, and is spent on few values.
"""

from __future__ import annotations

from functools import reduce

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql import types as T

from headrace.flow.canonical import BASE64, DATE, TIME
from headrace.model.fitting import FLOAT_NAMES, expected
from headrace.model.kinds import Choice, Digits, Field, Kind, Many, Named, Plain, Record

__all__ = ["careful", "look"]

_LEVELS_MAX = 200
_SHOWN_MAX = 60
_PARSER_LEVELS_MAX = 1_000
"""Of Jackson, which Spark reads JSON with."""
# Half of a pair without its other half; an even number of backslashes before it makes it plain text.
_HALF_PAIR = (
    r"(?i)(?<!\\)(?:\\\\)*+\\ud[89ab][0-9a-f]{2}(?!\\ud[c-f][0-9a-f]{2})"
    r"|(?<!\\ud[89ab][0-9a-f]{2})(?<!\\)(?:\\\\)*+\\ud[c-f][0-9a-f]{2}"
)
# The parser has a limit too, and counts in another way.
_NUMBER_CHARS_MAX = 1_000
_LONG_NUMBER = f"[-+.0-9eE]{{{_NUMBER_CHARS_MAX + 1}}}"
# A number that a variant holds as a float, though it has more digits than a float has.
_LONG_FLOAT = r"[0-9.]{17,}+[eE]|[0-9.]{39}"
_SHORTEST_US, _LONGEST_US = -62_135_596_800_000_000, 253_402_300_799_999_999
"""From year 1 to year 9999, all that Python's times and dates can be."""


def look(text: Column) -> Column:
    """What ``careful`` needs, as a column of its own, so that a text is read once for each question."""
    listed = F.json_array_length(F.concat(F.lit("["), text, F.lit("]")))
    return F.struct(
        # Each of the two sees what would close the other's bracket.
        F.coalesce(listed == 1, F.lit(False)).alias("listed"),
        F.try_variant_get(F.try_parse_json(_named(text)), "$.v", "variant").alias("whole"),
    )


def careful(text: Column, looked: Column, fields: tuple[Field, ...]) -> Column:
    """Null where nothing is found; ``text`` must be UTF-8."""
    whole = looked["whole"]
    not_json = F.lit(f"not JSON, or nested deeper than {_LEVELS_MAX} levels")
    is_half = text.contains("\\u") & text.rlike(_HALF_PAIR)
    reason = F.when(~looked["listed"], not_json)
    reason = reason.when(_too_deep(text), F.lit(f"nested deeper than {_LEVELS_MAX} levels"))
    reason = reason.when(
        _has_long_number(text), F.lit(f"a number of more than {_NUMBER_CHARS_MAX} characters")
    )
    reason = reason.when(is_half, F.lit("half a surrogate pair, which is no character"))
    # A variant has no field twice; nobody else minds.
    reason = reason.when(whole.isNull() & F.json_object_keys(_named(text)).isNull(), not_json)
    reason = reason.when(whole.isNull(), F.lit("a field is there twice"))
    reason = reason.when(~text.rlike(r"\A[ \t\r\n]*+\{"), F.lit("expected an object"))
    for field in fields:
        reason = _reason(reason, _part(whole, field.name), field, field.name, text)
    return reason


def _named(text: Column) -> Column:
    return F.concat(F.lit('{"v":'), text, F.lit("}"))


def _part(of: Column, name: str) -> Column:
    if name.isidentifier():
        return F.try_variant_get(of, f"$.{name}", "variant")
    # A path cannot name every field that a function may return.
    return F.try_variant_get(of, "$", "map<string,variant>")[name]


def _too_deep(text: Column) -> Column:
    """Wrapped in as many lists as the parser allows more levels than we do."""
    opened = (
        F.length(text) * 2 - F.length(F.replace(text, F.lit("["))) - F.length(F.replace(text, F.lit("{")))
    )
    more = _PARSER_LEVELS_MAX - _LEVELS_MAX
    wrapped = F.concat(F.lit("[" * more), text, F.lit("]" * more))
    return (opened > _LEVELS_MAX) & F.json_array_length(wrapped).isNull()


def _has_long_number(text: Column) -> Column:
    """Outside of what is quoted, which is taken away in two steps: Java's one step for both would need a deep stack."""
    bare = F.regexp_replace(F.regexp_replace(text, r"\\.", "__"), r'"[^"]*+"', '""')
    return text.rlike(_LONG_NUMBER) & bare.rlike(_LONG_NUMBER)


def _reason(reason: Column, found: Column, field: Field, path: str, text: Column) -> Column:
    """The reasons so far, and those of one field."""
    wrong = f"{path}: expected {expected(field.kind)}"
    if isinstance(field.kind, (Many, Named)):
        wrong += f", of {expected(field.kind.of)}"
    found_as = F.replace(F.schema_of_variant(found), F.lit("VOID"), F.lit("null"))
    shown = F.concat_ws(" ", F.coalesce(found_as, F.lit("nothing")), F.try_variant_get(found, "$", "string"))
    told = F.concat(F.lit(f"{wrong}, found "), F.substring(shown, 1, _SHOWN_MAX))
    if not isinstance(field.kind, Record):
        return reason.when(_bad(found, field.kind, field.optional, text), told)
    # What is inside is told by its own name.
    is_there = F.coalesce(_is_object(found), F.lit(False))
    reason = reason.when(~is_there & ~_absent(found) if field.optional else ~is_there, told)
    for one in field.kind.fields:
        part, at = _part(found, one.name), f"{path}.{one.name}"
        if not one.optional:
            reason = reason.when(is_there & _absent(part), F.lit(f"{at}: missing or null"))
        reason = _reason(reason, part, Field(one.name, one.kind, optional=True), at, text)
    return reason


def _absent(found: Column) -> Column:
    return found.isNull() | F.is_variant_null(found)


def _is_object(found: Column) -> Column:
    return F.schema_of_variant(found).startswith("OBJECT<")


def _bad(found: Column, kind: Kind, optional: bool, text: Column) -> Column:
    """Whether it is something else than the kind allows."""
    wrong = ~F.coalesce(_is(found, kind, text), F.lit(False))
    return wrong & ~_absent(found) if optional else wrong


def _is(found: Column, kind: Kind, text: Column) -> Column:
    match kind:
        case Many(of, optional):
            parts = F.try_variant_get(found, "$", "array<variant>")
            return ~F.exists(parts, lambda one: _bad(one, of, optional, text))
        case Named(of, optional):
            parts = F.map_values(F.try_variant_get(found, "$", "map<string,variant>"))
            return ~F.exists(parts, lambda one: _bad(one, of, optional, text))
        case Record(fields):
            return reduce(
                lambda so_far, one: so_far & ~_bad(_part(found, one.name), one.kind, one.optional, text),
                fields,
                _is_object(found),
            )
    found_as, told = F.schema_of_variant(found), F.try_variant_get(found, "$", "string")
    is_text = found_as == "STRING"
    match kind:
        case Choice(values):
            return is_text & told.isin(*values)
        case Digits(_, scale):
            return _is_exact(found, found_as, told, scale, text)
        case Plain("int"):
            return found_as == "BIGINT"
        case Plain("float"):
            finite = F.abs(F.try_variant_get(found, "$", "double")) < float("inf")
            return F.when(is_text, told.isin(*FLOAT_NAMES)).otherwise(_is_number(found_as) & finite)
        case Plain("bool"):
            return found_as == "BOOLEAN"
        case Plain("time"):
            us = F.unix_micros(F.try_to_timestamp(told))
            return is_text & told.rlike(rf"\A{TIME}\z") & us.between(_SHORTEST_US, _LONGEST_US)
        case Plain("date"):
            return is_text & told.rlike(rf"\A{DATE}\z")
        case Plain("bytes"):
            return is_text & told.rlike(rf"\A{BASE64}\z")
        case _:
            return is_text


def _is_number(found_as: Column) -> Column:
    return (found_as == "BIGINT") | (found_as == "DOUBLE") | found_as.startswith("DECIMAL")


def _is_exact(found: Column, found_as: Column, told: Column, scale: int, text: Column) -> Column:
    """Whether no digit behind the last that counts is anything but zero. How many there may be before the point, Spark
    sees by itself.
    """
    number = r"-?(?:0|[1-9][0-9]*+)"
    plain = told.rlike(rf"\A{number}(?:\.[0-9]{{0,{scale}}}0*+)?\z") & ~told.endswith(".")
    # With an exponent it is held as a float, which is exact for no more than 15 digits.
    as_float = F.try_variant_get(found, "$", "double")
    rounded = as_float.try_cast(T.DecimalType(38, scale)).try_cast("double")
    floating = (rounded == as_float) & ~text.rlike(_LONG_FLOAT)
    written = told.rlike(rf"\A{number}(?:\.[0-9]++)?+(?:[eE][+-]?[0-9]++)?+\z")
    return (
        F.when(found_as == "DOUBLE", floating)
        .when(found_as == "STRING", plain | (told.rlike("[eE]") & written & floating))
        .when(_is_number(found_as), plain)
        .otherwise(F.lit(False))
    )
