"""Decodes JSON values in Spark expressions. The result is a row, or the reason why the value does not fit.

Spark's own JSON parser is far more lenient than ``headrace.model.codec``, and alters values. It reads the first value
of a text and ignores the rest. If two fields have the same name, it uses the last. It converts any value to text where
the schema declares text, rounds exact numbers, and accepts many formats of times.

So the decoder does two things. It parses a value once with Spark's parser, into the types of its fields. It also
matches the text against ``canonical``, a regular expression for the usual way to write a value: the fields in the order
of the schema, each at most once, each with a value of its kind, and no text before or after. Most values match and need
no other check. All repetitions in the expression are possessive, because Java implements other repetitions by
recursion, which can overflow the stack.

A value that does not match can still be valid; ``strict_reason`` decides. It parses the text as a Spark variant, which
preserves the JSON types, and compares each part with the schema. This costs several times as much as parsing.
"""

from __future__ import annotations

import json
import re
from functools import reduce
from typing import Any

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql import types as T

from headrace.flow.spark_types import parsed_struct, type_of
from headrace.model.codec.strict_decode import FLOAT_NAMES, expected
from headrace.model.kinds import Digits, Enum, Field, Kind, List, Map, Record, Scalar

__all__ = ["JsonDecoder"]

_CORRUPT = "_headrace_corrupt"
_OPTIONS = {
    "mode": "PERMISSIVE",
    "columnNameOfCorruptRecord": _CORRUPT,
    "allowSingleQuotes": "false",
    "timeZone": "UTC",
}

_LEVELS_MAX = 200
_SHOWN_CHARS_MAX = 60
_PARSER_LEVELS_MAX = 1_000
"""The limit of Jackson, Spark's JSON parser."""
# Half of a surrogate pair without the other half. After an escaped backslash, ``u`` is plain text.
_HALF_PAIR = (
    r"(?i)(?<!\\)(?:\\\\)*+\\ud[89ab][0-9a-f]{2}(?!\\ud[c-f][0-9a-f]{2})"
    r"|(?<!\\ud[89ab][0-9a-f]{2})(?<!\\)(?:\\\\)*+\\ud[c-f][0-9a-f]{2}"
)
# Spark's parser limits the length of a number as well, but counts its characters differently.
_NUMBER_CHARS_MAX = 1_000
_LONG_NUMBER = f"[-+.0-9eE]{{{_NUMBER_CHARS_MAX + 1}}}"
# A number that a variant stores as a float, although a float cannot represent all of its digits.
_LONG_FLOAT = r"[0-9.]{17,}+[eE]|[0-9.]{39}"
_TIME_MIN_US, _TIME_MAX_US = -62_135_596_800_000_000, 253_402_300_799_999_999
"""The years 1 to 9999, the range of Python's times and dates."""
TIME = (
    r"(?!0000)[0-9]{4}-[0-9]{2}-[0-9]{2}[T ](?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]{1,9})?"
    r"(?:Z|[+-](?:0[0-9]|1[0-7]):[0-5][0-9]|[+-]18:00)"
)
DATE = r"(?!0000)[0-9]{4}-[0-9]{2}-[0-9]{2}"
BASE64 = (
    r"(?:[A-Za-z0-9+/]{4})*+"
    r"(?:[A-Za-z0-9+/][AQgw]==|[A-Za-z0-9+/]{2}[AEIMQUYcgkosw048]=)?+"
)
# Excludes \\u escapes, because they can be half of a surrogate pair.
_TEXT = r'"(?:[^"\\]++|\\[^u])*+"'
_SCALAR_PATTERNS = {
    "text": _TEXT,
    # At most 18 digits: these always fit in 64 bits.
    "int": r"-?[0-9]{1,18}",
    # Allows far fewer characters than the maximum length of a number.
    "float": r'(?:-?[0-9]{1,18}+(?:\.[0-9]{1,500}+)?+(?:[eE][+-]?[0-9]{1,2})?+|"NaN"|"-?Infinity")',
    "bool": "(?:true|false)",
    # Only UTC: with another offset the year could be out of range.
    "time": TIME.rpartition("(?:Z|")[0].join(('"', 'Z"')),
    "date": f'"{DATE}"',
    "bytes": f'"{BASE64}"',
}
_NEVER_MATCHES = "(?!)"


class JsonDecoder:
    """Implements ``headrace.flow.codec.codec.ValueDecoder``."""

    def __init__(self, fields: tuple[Field, ...]) -> None:
        struct = T.StructType([*parsed_struct(fields).fields, T.StructField(_CORRUPT, T.StringType())])
        text, parsed = F.col("value").cast("string"), F.col("parsed")
        is_parsed = parsed.isNotNull() & parsed[_CORRUPT].isNull()
        is_canonical = is_parsed & F.is_valid_utf8(text) & text.rlike(canonical(fields))
        self.parsed = F.from_json(text, struct, _OPTIONS)
        self.row = F.struct(*(_converted(parsed[field.name], field).alias(field.name) for field in fields))
        self.checks = {
            "is_canonical": is_canonical | F.col("value").isNull(),
            "inspected": F.when(~F.col("is_canonical") & F.is_valid_utf8(text), inspect_text(text)),
        }
        self.reason = (
            F.when(F.col("is_canonical"), F.lit(None))
            .when(~F.is_valid_utf8(text), F.lit("not UTF-8"))
            .otherwise(
                F.coalesce(
                    strict_reason(text, F.col("inspected"), fields),
                    F.when(~is_parsed, F.lit("not an object with the fields of the schema")),
                )
            )
        )


def _converted(parsed: Column, field: Field) -> Column:
    """Return the value, or the default if the value is absent."""
    value = _converted_kind(parsed, field.kind)
    if field.default is None:
        return value
    return F.when(parsed.isNull(), _literal(field.default, field.kind)).otherwise(value)


def _literal(value: Any, kind: Kind) -> Column:
    match kind:
        case List(element_kind, _):
            built = F.array(*(_literal(item, element_kind) for item in value))
        case Map(element_kind, _):
            pairs = [
                part
                for name, element in value.items()
                for part in (F.lit(name), _literal(element, element_kind))
            ]
            built = F.create_map(*pairs)
        case _:
            built = F.lit(value)
    return built.cast(type_of(kind))


def _converted_kind(parsed: Column, kind: Kind) -> Column:
    match kind:
        case List(element_kind, _) if _has_defaults(element_kind):
            return F.transform(parsed, lambda element: _converted_kind(element, element_kind))
        case Map(element_kind, _) if _has_defaults(element_kind):
            return F.transform_values(parsed, lambda _, element: _converted_kind(element, element_kind))
        case Record(fields) if _has_defaults(kind):
            built = F.struct(*(_converted(parsed[field.name], field).alias(field.name) for field in fields))
            return F.when(parsed.isNotNull(), built)
        case _:
            return parsed


def _has_defaults(kind: Kind) -> bool:
    match kind:
        case List(element_kind, _) | Map(element_kind, _):
            return _has_defaults(element_kind)
        case Record(fields):
            return any(field.default is not None or _has_defaults(field.kind) for field in fields)
        case _:
            return False


def inspect_text(text: Column) -> Column:
    """Return the input of ``strict_reason`` as a separate column, so that Spark computes each part once."""
    array_length = F.json_array_length(F.concat(F.lit("["), text, F.lit("]")))
    return F.struct(
        # A text such as ``1], [2`` passes this check. It fails the next check, which puts the text into an object.
        F.coalesce(array_length == 1, F.lit(False)).alias("is_single"),
        F.try_variant_get(F.try_parse_json(_wrapped(text)), "$.v", "variant").alias("parsed_variant"),
    )


def strict_reason(text: Column, inspected: Column, fields: tuple[Field, ...]) -> Column:
    """Return why the value does not fit, or null if it fits. ``text`` must be UTF-8."""
    parsed_variant = inspected["parsed_variant"]
    not_json = F.lit(f"not JSON, or nested deeper than {_LEVELS_MAX} levels")
    has_half_pair = text.contains("\\u") & text.rlike(_HALF_PAIR)
    reason = F.when(~inspected["is_single"], not_json)
    reason = reason.when(_too_deep(text), F.lit(f"nested deeper than {_LEVELS_MAX} levels"))
    reason = reason.when(
        _has_long_number(text), F.lit(f"a number has more than {_NUMBER_CHARS_MAX} characters")
    )
    reason = reason.when(has_half_pair, F.lit("half a surrogate pair"))
    # Spark's variant parser rejects duplicate fields; its other JSON functions accept them.
    reason = reason.when(parsed_variant.isNull() & F.json_object_keys(_wrapped(text)).isNull(), not_json)
    reason = reason.when(parsed_variant.isNull(), F.lit("a field occurs twice"))
    reason = reason.when(~text.rlike(r"\A[ \t\r\n]*+\{"), F.lit("expected an object"))
    for field in fields:
        reason = _reason(reason, _part(parsed_variant, field.name), field, field.name, text)
    return reason


def _wrapped(text: Column) -> Column:
    return F.concat(F.lit('{"v":'), text, F.lit("}"))


def _part(variant: Column, name: str) -> Column:
    if name.isidentifier():
        return F.try_variant_get(variant, f"$.{name}", "variant")
    # A variant path cannot express every column name that a flow's function can return.
    return F.try_variant_get(variant, "$", "map<string,variant>")[name]


def _too_deep(text: Column) -> Column:
    """Whether the text nests too deeply. Wraps the text in so many lists that a text beyond our limit exceeds the
    parser's limit and cannot be parsed.
    """
    brackets = (
        F.length(text) * 2 - F.length(F.replace(text, F.lit("["))) - F.length(F.replace(text, F.lit("{")))
    )
    added_levels = _PARSER_LEVELS_MAX - _LEVELS_MAX
    wrapped = F.concat(F.lit("[" * added_levels), text, F.lit("]" * added_levels))
    return (brackets > _LEVELS_MAX) & F.json_array_length(wrapped).isNull()


def _has_long_number(text: Column) -> Column:
    """Whether a long number occurs outside of quotes.

    Quoted parts are removed in two steps, because a single regular expression would need a deep stack.
    """
    bare = F.regexp_replace(F.regexp_replace(text, r"\\.", "__"), r'"[^"]*+"', '""')
    return text.rlike(_LONG_NUMBER) & bare.rlike(_LONG_NUMBER)


def _reason(reason: Column, variant: Column, field: Field, path: str, text: Column) -> Column:
    """Add the reasons of one field to ``reason``."""
    expectation = f"{path}: expected {expected(field.kind)}"
    if isinstance(field.kind, (List, Map)):
        expectation += f", of {expected(field.kind.of)}"
    variant_type = F.replace(F.schema_of_variant(variant), F.lit("VOID"), F.lit("null"))
    described = F.concat_ws(
        " ", F.coalesce(variant_type, F.lit("nothing")), F.try_variant_get(variant, "$", "string")
    )
    message = F.concat(F.lit(f"{expectation}, found "), F.substring(described, 1, _SHOWN_CHARS_MAX))
    if not isinstance(field.kind, Record):
        return reason.when(_mismatches(variant, field.kind, field.optional, text), message)
    # Nested fields add their own reasons.
    is_object = F.coalesce(_is_object(variant), F.lit(False))
    reason = reason.when(~is_object & ~_absent(variant) if field.optional else ~is_object, message)
    for nested in field.kind.fields:
        part, nested_path = _part(variant, nested.name), f"{path}.{nested.name}"
        if not nested.optional:
            reason = reason.when(is_object & _absent(part), F.lit(f"{nested_path}: missing or null"))
        reason = _reason(reason, part, Field(nested.name, nested.kind, optional=True), nested_path, text)
    return reason


def _absent(variant: Column) -> Column:
    return variant.isNull() | F.is_variant_null(variant)


def _is_object(variant: Column) -> Column:
    return F.schema_of_variant(variant).startswith("OBJECT<")


def _mismatches(variant: Column, kind: Kind, optional: bool, text: Column) -> Column:
    """Whether the value is not of the kind."""
    is_mismatch = ~F.coalesce(_matches(variant, kind, text), F.lit(False))
    return is_mismatch & ~_absent(variant) if optional else is_mismatch


def _matches(variant: Column, kind: Kind, text: Column) -> Column:
    match kind:
        case List(element_kind, optional):
            parts = F.try_variant_get(variant, "$", "array<variant>")
            return ~F.exists(parts, lambda element: _mismatches(element, element_kind, optional, text))
        case Map(element_kind, optional):
            parts = F.map_values(F.try_variant_get(variant, "$", "map<string,variant>"))
            return ~F.exists(parts, lambda element: _mismatches(element, element_kind, optional, text))
        case Record(fields):
            return reduce(
                lambda matches, field: (
                    matches & ~_mismatches(_part(variant, field.name), field.kind, field.optional, text)
                ),
                fields,
                _is_object(variant),
            )
    variant_type, string = F.schema_of_variant(variant), F.try_variant_get(variant, "$", "string")
    is_text = variant_type == "STRING"
    match kind:
        case Enum(values):
            return is_text & string.isin(*values)
        case Digits(_, scale):
            return _is_exact(variant, variant_type, string, scale, text)
        case Scalar("int"):
            return variant_type == "BIGINT"
        case Scalar("float"):
            finite = F.abs(F.try_variant_get(variant, "$", "double")) < float("inf")
            return F.when(is_text, string.isin(*FLOAT_NAMES)).otherwise(_is_number(variant_type) & finite)
        case Scalar("bool"):
            return variant_type == "BOOLEAN"
        case Scalar("time"):
            us = F.unix_micros(F.try_to_timestamp(string))
            return is_text & string.rlike(rf"\A{TIME}\z") & us.between(_TIME_MIN_US, _TIME_MAX_US)
        case Scalar("date"):
            return is_text & string.rlike(rf"\A{DATE}\z")
        case Scalar("bytes"):
            return is_text & string.rlike(rf"\A{BASE64}\z")
        case _:
            return is_text


def _is_number(variant_type: Column) -> Column:
    return (variant_type == "BIGINT") | (variant_type == "DOUBLE") | variant_type.startswith("DECIMAL")


def _is_exact(variant: Column, variant_type: Column, string: Column, scale: int, text: Column) -> Column:
    """Whether all digits after the declared scale are zero. Spark checks the digits before the point."""
    number = r"-?(?:0|[1-9][0-9]*+)"
    plain = string.rlike(rf"\A{number}(?:\.[0-9]{{0,{scale}}}0*+)?\z") & ~string.endswith(".")
    # A number with an exponent is a float in a variant. A float is exact for at most 15 digits.
    as_float = F.try_variant_get(variant, "$", "double")
    rounded = as_float.try_cast(T.DecimalType(38, scale)).try_cast("double")
    floating = (rounded == as_float) & ~text.rlike(_LONG_FLOAT)
    written = string.rlike(rf"\A{number}(?:\.[0-9]++)?+(?:[eE][+-]?[0-9]++)?+\z")
    return (
        F.when(variant_type == "DOUBLE", floating)
        .when(variant_type == "STRING", plain | (string.rlike("[eE]") & written & floating))
        .when(_is_number(variant_type), plain)
        .otherwise(F.lit(False))
    )


def canonical(fields: tuple[Field, ...]) -> str:
    """Return the regular expression for a whole value, in Java's syntax."""
    return rf"\A{_record(fields)}\z"


def _record(fields: tuple[Field, ...]) -> str:
    first, *others = (f"{_quoted(field.name)}: ?+{_nullable(field.kind, field.optional)}" for field in fields)
    rest = (
        rf"(?:, ?+{text})" + ("?+" if field.optional else "")
        for text, field in zip(others, fields[1:], strict=True)
    )
    return rf"\{{{first}{''.join(rest)}\}}"


def _quoted(text: str) -> str:
    """Return an expression for the text as a JSON string. It never matches if JSON must escape the text."""
    written = json.dumps(text, ensure_ascii=False)
    return re.escape(written) if written == f'"{text}"' else _NEVER_MATCHES


def _nullable(kind: Kind, optional: bool) -> str:
    return f"(?:null|{_value(kind)})" if optional else _value(kind)


def _value(kind: Kind) -> str:
    match kind:
        case Scalar(name):
            return _SCALAR_PATTERNS[name]
        case Digits(precision, scale):
            integer_count = precision - scale
            integer_part = rf"(?:0|[1-9][0-9]{{0,{integer_count - 1}}}+)" if integer_count else "0"
            return f"-?{integer_part}" + (rf"(?:\.[0-9]{{1,{scale}}}+)?+" if scale else "")
        case Enum(values):
            return f"(?:{'|'.join(map(_quoted, values))})"
        case List(element_kind, optional):
            element = _nullable(element_kind, optional)
            return rf"\[(?:{element}(?:, ?+{element})*+)?+\]"
        case Map(element_kind, optional):
            # At most one key: the expression could not detect that two keys are equal.
            return rf"\{{(?:{_TEXT}: ?+{_nullable(element_kind, optional)})?+\}}"
        case Record(fields):
            return _record(fields)
