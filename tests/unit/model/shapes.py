"""Hypothesis strategies for schemas and their values."""

from __future__ import annotations

import math
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

from hypothesis import strategies as st

from headrace.model.kinds import Digits, Enum, Field, Kind, List, Map, Record, Scalar
from headrace.model.schema import Schema

# Texts that JSON must escape, that resemble JSON, or that are long in UTF-8; no lone surrogates.
TEXT = st.one_of(
    st.text(st.characters(exclude_categories=["Cs"]), max_size=8),
    st.sampled_from(['"', "\\", '":', '" :', "\0", "\x1f", "null", "{", "é😀", "a:b", "\u2028"]),
)
NAMES = st.one_of(st.sampled_from(["a", "b", "at", "sum(x)", 'quo"te', "é", ""]), TEXT)
OFFSETS = st.integers(-18 * 60, 18 * 60).map(lambda minutes: timezone(timedelta(minutes=minutes)))


@st.composite
def digits(draw: st.DrawFn) -> Digits:
    precision = draw(st.integers(1, 38))
    return Digits(precision, draw(st.integers(0, precision)))


SINGLE: st.SearchStrategy[Kind] = st.one_of(
    st.sampled_from(["text", "int", "float", "bool", "time", "date", "bytes"]).map(Scalar),  # type: ignore[arg-type]
    digits(),
    st.lists(TEXT, min_size=1, max_size=3, unique=True).map(lambda values: Enum(tuple(values))),
)


def fields(kinds: st.SearchStrategy[Kind]) -> st.SearchStrategy[tuple[Field, ...]]:
    @st.composite
    def field(draw: st.DrawFn, name: str) -> Field:
        kind, optional = draw(kinds), draw(st.booleans())
        with_default = optional and not isinstance(kind, Record) and draw(st.booleans())
        return Field(name, kind, optional, draw(values(kind)) if with_default else None)

    names = st.lists(NAMES, min_size=1, max_size=4, unique=True)
    return names.flatmap(lambda chosen: st.tuples(*map(field, chosen)))


KINDS = st.recursive(
    SINGLE,
    lambda inner: st.one_of(
        st.builds(List, inner, st.booleans()),
        st.builds(Map, inner, st.booleans()),
        fields(inner).map(Record),
    ),
    max_leaves=4,
)
SCHEMAS = fields(KINDS).map(lambda schema_fields: Schema("Any", schema_fields))


def values(kind: Kind) -> st.SearchStrategy[Any]:
    """Values as a decoder returns them: times in UTC, exact numbers with all digits, enums as text."""
    match kind:
        case Scalar(name):
            return PLAIN[name]
        case Digits(precision, scale):
            limit = 10**precision - 1
            return st.integers(-limit, limit).map(lambda number: Decimal(f"{number}e-{scale}"))
        case Enum(choices):
            return st.sampled_from(choices)
        case List(of, optional):
            return st.lists(_maybe(of, optional), max_size=3)
        case Map(of, optional):
            return st.dictionaries(TEXT, _maybe(of, optional), max_size=3)
        case Record(inner):
            return rows(inner)


def rows(of: tuple[Field, ...]) -> st.SearchStrategy[dict[str, Any]]:
    """Rows with their fields in the order of the schema, as a decoder returns them."""
    drawn = st.fixed_dictionaries({field.name: _maybe(field.kind, field.may_be_none) for field in of})
    return drawn.map(lambda row: {field.name: row[field.name] for field in of})


def _maybe(kind: Kind, optional: bool) -> st.SearchStrategy[Any]:
    return st.none() | values(kind) if optional else values(kind)


PLAIN: dict[str, st.SearchStrategy[Any]] = {
    "text": TEXT,
    "int": st.integers(-(2**63), 2**63 - 1),
    "float": st.floats(),
    "bool": st.booleans(),
    "time": st.datetimes(timezones=st.just(UTC)),
    "date": st.dates(date.min, date.max),
    "bytes": st.binary(max_size=5),
}


def same(value: Any, other: Any) -> bool:
    """Whether two values are equal in type and value; NaN equals NaN, and 0.0 differs from -0.0."""
    if type(value) is not type(other):
        return False
    match value:
        case dict():
            return list(value) == list(other) and all(same(value[key], other[key]) for key in value)
        case list():
            return len(value) == len(other) and all(map(same, value, other))
        case float():
            return repr(value) == repr(other)
        case Decimal():
            return str(value) == str(other)
        case datetime():
            return bool(value == other) and value.utcoffset() == other.utcoffset()
    return bool(value == other) and not (isinstance(value, float) and math.isnan(value))
