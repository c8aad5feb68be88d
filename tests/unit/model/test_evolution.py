from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.model.codec.codec import new_codec
from headrace.model.evolution import unreadable_reasons
from headrace.model.kinds import Digits, Enum, Field, Kind, List, Map, Record, Scalar
from headrace.model.schema import Schema

from .shapes import KINDS, SCHEMAS, SINGLE, rows, same

TEXT, INT, FLOAT = Scalar("text"), Scalar("int"), Scalar("float")


def schema_with(kind: Kind, optional: bool = False) -> Schema:
    return Schema("Old", (Field("x", kind, optional),))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (INT, INT),
        (INT, Digits(19, 0)),
        (INT, Digits(25, 6)),
        (Digits(18, 0), INT),
        (Digits(10, 2), Digits(12, 4)),
        (Enum(("a",)), Enum(("b", "a"))),
        (Enum(("a",)), TEXT),
        (List(Enum(("a",))), List(TEXT, True)),
        (Map(INT), Map(INT, True)),
        (Record((Field("a", INT, False), Field("b", INT, False))), Record((Field("b", INT, True),))),
    ],
)
def test_a_change_that_reads_every_old_event_unaltered_is_allowed(old: Kind, new: Kind) -> None:
    assert unreadable_reasons(schema_with(old), schema_with(new)) == []
    assert unreadable_reasons(schema_with(old), schema_with(new, optional=True)) == []


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        (INT, FLOAT, "x was a 64-bit integer and is now a number,"),
        (FLOAT, INT, "x was a number,"),
        (FLOAT, Digits(38, 18), "x was a number,"),
        (Digits(18, 6), FLOAT, "x was an exact number"),
        (INT, Digits(18, 0), "x was a 64-bit integer"),
        (Digits(19, 0), INT, "x was an exact number"),
        (Digits(10, 2), INT, "x was an exact number"),
        (
            Digits(10, 2),
            Digits(12, 5),
            "up to 8 digits before the point and 2 after it and is now an exact number",
        ),
        (Digits(10, 2), Digits(12, 1), "x was an exact number"),
        (TEXT, Enum(("a",)), "x was text and is now one of 'a'"),
        (TEXT, Scalar("time"), "x was text"),
        (Scalar("time"), TEXT, "x was a time"),
        (Enum(("a", "b", "c")), Enum(("b",)), "x no longer allows 'a', 'c', but old events might have it"),
        (List(INT, True), List(INT), "x[] does not allow null now"),
        (Map(INT), Map(TEXT), "x[] was a 64-bit integer and is now text"),
        (Map(INT), Record((Field("a", INT, True),)), "x was an object and is now an object"),
        (INT, List(INT), "x was a 64-bit integer and is now a list"),
        (
            List(Record((Field("a", INT, False),))),
            List(Record((Field("a", TEXT, False), Field("b", INT, False)))),
            "x[].b is new and required",
        ),
    ],
)
def test_a_change_that_fails_or_alters_old_events_is_reported(old: Kind, new: Kind, reason: str) -> None:
    assert any(reason in problem for problem in unreadable_reasons(schema_with(old), schema_with(new)))


def test_fields_with_a_default_may_be_added_and_any_field_removed() -> None:
    both = Schema("Both", (Field("x", INT, False), Field("y", INT, False)))
    assert unreadable_reasons(both, schema_with(INT)) == []
    assert unreadable_reasons(schema_with(INT), both) == [
        "y is new and required, but old events do not have it: add a default"
    ]
    assert unreadable_reasons(schema_with(INT, optional=True), schema_with(INT)) == [
        "x is required now, but old events might not have it"
    ]
    with_default = Schema("New", (Field("y", TEXT, True, "none"), Field("x", INT, False)))
    assert unreadable_reasons(schema_with(INT), with_default) == []
    assert new_codec(with_default).decode(new_codec(schema_with(INT)).encode({"x": 1})) == {
        "y": "none",
        "x": 1,
    }


@st.composite
def changed(draw: st.DrawFn, fields: tuple[Field, ...]) -> tuple[Field, ...]:
    """Fields with some added, removed, moved, or changed to optional, required, or another kind."""
    later = []
    for field in draw(st.permutations(fields)):
        change = draw(st.sampled_from(["keep", "keep", "drop", "optional", "required", "kind"]))
        if change == "drop" and len(fields) > 1:
            continue
        if change == "optional":
            field = replace(field, optional=True, default=None)
        elif change == "required":
            field = replace(field, optional=False, default=None)
        elif change == "kind":
            field = replace(field, kind=draw(other_kind(field.kind)), default=None)
        later.append(field)
    if draw(st.booleans()) and all(field.name != "new" for field in fields):
        later.append(Field("new", draw(SINGLE), draw(st.booleans())))
    return tuple(later) or fields


@st.composite
def other_kind(draw: st.DrawFn, kind: Kind) -> Kind:
    match kind:
        case Digits(precision, scale):
            more = draw(st.integers(-1, 2))
            scale = min(max(scale + draw(st.integers(-1, 2)), 0), 38)
            return draw(st.sampled_from([Digits(min(max(precision + more, scale, 1), 38), scale), INT]))
        case Enum(values):
            return draw(st.sampled_from([Enum((*values, "more")), Enum(values[1:] or ("a",)), TEXT]))
        case List(of, optional):
            return List(draw(other_kind(of)), draw(st.sampled_from([optional, True])))
        case Map(of, optional):
            return Map(draw(other_kind(of)), draw(st.sampled_from([optional, True])))
        case Record(fields):
            return Record(draw(changed(fields)))
    return draw(st.one_of(KINDS, st.just(Digits(19, 0)), st.just(TEXT)))


@st.composite
def schemas_then_and_now(draw: st.DrawFn) -> tuple[Schema, Schema, dict[str, Any]]:
    old = draw(SCHEMAS)
    new = Schema("New", draw(changed(old.fields)))
    return old, new, draw(rows(old.fields))


@given(schemas_then_and_now())
def test_a_readable_change_reads_every_old_event(
    schemas_and_row: tuple[Schema, Schema, dict[str, Any]],
) -> None:
    old, new, row = schemas_and_row
    if unreadable_reasons(old, new):
        return
    found = new_codec(new).decode(new_codec(old).encode(row))
    assert list(found) == list(new.names)
    for field in new.fields:
        was = old.field(field.name)
        if was is None or row[field.name] is None:
            assert same(found[field.name], field.default)
        elif isinstance(field.kind, Scalar | Digits | Enum):
            assert found[field.name] == row[field.name] or same(found[field.name], row[field.name])
