"""Any schema, and any value of it, for hypothesis."""

from __future__ import annotations

import math
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

from hypothesis import strategies as st

from headrace.model.kinds import Choice, Digits, Field, Kind, Many, Named, Plain, Record
from headrace.model.schema import Schema

# Text with what JSON must escape, what looks like JSON, and what UTF-8 makes long; no half surrogate pairs.
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
    st.sampled_from(["text", "int", "float", "bool", "time", "date", "bytes"]).map(Plain),  # type: ignore[arg-type]
    digits(),
    st.lists(TEXT, min_size=1, max_size=3, unique=True).map(lambda values: Choice(tuple(values))),
)


def fields(kinds: st.SearchStrategy[Kind]) -> st.SearchStrategy[tuple[Field, ...]]:
    @st.composite
    def one(draw: st.DrawFn, name: str) -> Field:
        kind, optional = draw(kinds), draw(st.booleans())
        with_default = optional and not isinstance(kind, Record) and draw(st.booleans())
        return Field(name, kind, optional, draw(values(kind)) if with_default else None)

    names = st.lists(NAMES, min_size=1, max_size=4, unique=True)
    return names.flatmap(lambda chosen: st.tuples(*map(one, chosen)))


KINDS = st.recursive(
    SINGLE,
    lambda inner: st.one_of(
        st.builds(Many, inner, st.booleans()),
        st.builds(Named, inner, st.booleans()),
        fields(inner).map(Record),
    ),
    max_leaves=4,
)
SCHEMAS = fields(KINDS).map(lambda made: Schema("Any", made))


def values(kind: Kind) -> st.SearchStrategy[Any]:
    """As they are read: times in UTC, exact numbers with all of their digits, enums as text."""
    match kind:
        case Plain(name):
            return PLAIN[name]
        case Digits(precision, scale):
            limit = 10**precision - 1
            return st.integers(-limit, limit).map(lambda number: Decimal(f"{number}e-{scale}"))
        case Choice(choices):
            return st.sampled_from(choices)
        case Many(of, optional):
            return st.lists(_maybe(of, optional), max_size=3)
        case Named(of, optional):
            return st.dictionaries(TEXT, _maybe(of, optional), max_size=3)
        case Record(inner):
            return rows(inner)


def rows(of: tuple[Field, ...]) -> st.SearchStrategy[dict[str, Any]]:
    """In the order of the fields, as they are read."""
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


def same(one: Any, other: Any) -> bool:
    """Equal in type and value; NaN is itself, and zero has its sign."""
    if type(one) is not type(other):
        return False
    match one:
        case dict():
            return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
        case list():
            return len(one) == len(other) and all(map(same, one, other))
        case float():
            return repr(one) == repr(other)
        case Decimal():
            return str(one) == str(other)
        case datetime():
            return bool(one == other) and one.utcoffset() == other.utcoffset()
    return bool(one == other) and not (isinstance(one, float) and math.isnan(one))
