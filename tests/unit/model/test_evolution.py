from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.model.evolution import readable
from headrace.model.kinds import Choice, Digits, Field, Kind, Many, Named, Plain, Record
from headrace.model.schema import Schema
from headrace.model.values import Codec

from .shapes import KINDS, SCHEMAS, SINGLE, rows, same

TEXT, INT, FLOAT = Plain("text"), Plain("int"), Plain("float")


def one(kind: Kind, optional: bool = False) -> Schema:
    return Schema("Old", (Field("x", kind, optional),))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (INT, INT),
        (INT, Digits(19, 0)),
        (INT, Digits(25, 6)),
        (Digits(18, 0), INT),
        (Digits(10, 2), Digits(12, 4)),
        (Choice(("a",)), Choice(("b", "a"))),
        (Choice(("a",)), TEXT),
        (Many(Choice(("a",))), Many(TEXT, True)),
        (Named(INT), Named(INT, True)),
        (Record((Field("a", INT, False), Field("b", INT, False))), Record((Field("b", INT, True),))),
    ],
)
def test_what_reads_every_old_event_as_it_was_is_allowed(old: Kind, new: Kind) -> None:
    assert readable(one(old), one(new)) == []
    assert readable(one(old), one(new, optional=True)) == []


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        (INT, FLOAT, "x was a whole number of 64 bits, and is a number,"),
        (FLOAT, INT, "x was a number,"),
        (FLOAT, Digits(38, 18), "x was a number,"),
        (Digits(18, 6), FLOAT, "x was an exact number"),
        (INT, Digits(18, 0), "x was a whole number"),
        (Digits(19, 0), INT, "x was an exact number"),
        (Digits(10, 2), INT, "x was an exact number"),
        (
            Digits(10, 2),
            Digits(12, 5),
            "up to 8 digits before the point and 2 behind it, and is an exact number",
        ),
        (Digits(10, 2), Digits(12, 1), "x was an exact number"),
        (TEXT, Choice(("a",)), "x was text, and is one of 'a' now"),
        (TEXT, Plain("time"), "x was text"),
        (Plain("time"), TEXT, "x was a time"),
        (Choice(("a", "b", "c")), Choice(("b",)), "x may no longer be 'a', 'c', as old events may have it"),
        (Many(INT, True), Many(INT), "x[] may not be null now"),
        (Named(INT), Named(TEXT), "x[] was a whole number of 64 bits, and is text now"),
        (Named(INT), Record((Field("a", INT, True),)), "x was an object, and is an object now"),
        (INT, Many(INT), "x was a whole number of 64 bits, and is a list now"),
        (
            Many(Record((Field("a", INT, False),))),
            Many(Record((Field("a", TEXT, False), Field("b", INT, False)))),
            "x[].b is new and must be there",
        ),
    ],
)
def test_what_would_fail_or_read_something_else_is_told(old: Kind, new: Kind, reason: str) -> None:
    assert any(reason in told for told in readable(one(old), one(new)))


def test_fields_may_come_with_a_default_and_go() -> None:
    both = Schema("Both", (Field("x", INT, False), Field("y", INT, False)))
    assert readable(both, one(INT)) == []
    assert readable(one(INT), both) == [
        "y is new and must be there, and old events have none: give it a default"
    ]
    assert readable(one(INT, optional=True), one(INT)) == [
        "x must be there now, and old events may have none"
    ]
    with_default = Schema("New", (Field("y", TEXT, True, "none"), Field("x", INT, False)))
    assert readable(one(INT), with_default) == []
    assert Codec(with_default).decode(Codec(one(INT)).encode({"x": 1})) == {"y": "none", "x": 1}


@st.composite
def changed(draw: st.DrawFn, fields: tuple[Field, ...]) -> tuple[Field, ...]:
    """Fields with others added, taken out, put elsewhere, and made optional, required, or of another kind."""
    made = []
    for field in draw(st.permutations(fields)):
        what = draw(st.sampled_from(["keep", "keep", "drop", "optional", "required", "kind"]))
        if what == "drop" and len(fields) > 1:
            continue
        if what == "optional":
            field = replace(field, optional=True, default=None)
        elif what == "required":
            field = replace(field, optional=False, default=None)
        elif what == "kind":
            field = replace(field, kind=draw(other_kind(field.kind)), default=None)
        made.append(field)
    if draw(st.booleans()) and all(field.name != "new" for field in fields):
        made.append(Field("new", draw(SINGLE), draw(st.booleans())))
    return tuple(made) or fields


@st.composite
def other_kind(draw: st.DrawFn, kind: Kind) -> Kind:
    match kind:
        case Digits(precision, scale):
            more = draw(st.integers(-1, 2))
            scale = min(max(scale + draw(st.integers(-1, 2)), 0), 38)
            return draw(st.sampled_from([Digits(min(max(precision + more, scale, 1), 38), scale), INT]))
        case Choice(values):
            return draw(st.sampled_from([Choice((*values, "more")), Choice(values[1:] or ("a",)), TEXT]))
        case Many(of, optional):
            return Many(draw(other_kind(of)), draw(st.sampled_from([optional, True])))
        case Named(of, optional):
            return Named(draw(other_kind(of)), draw(st.sampled_from([optional, True])))
        case Record(fields):
            return Record(draw(changed(fields)))
    return draw(st.one_of(KINDS, st.just(Digits(19, 0)), st.just(TEXT)))


@st.composite
def schemas_then_and_now(draw: st.DrawFn) -> tuple[Schema, Schema, dict[str, Any]]:
    old = draw(SCHEMAS)
    new = Schema("New", draw(changed(old.fields)))
    return old, new, draw(rows(old.fields))


@given(schemas_then_and_now())
def test_whatever_is_found_readable_reads_every_old_event(
    made: tuple[Schema, Schema, dict[str, Any]],
) -> None:
    old, new, row = made
    if readable(old, new):
        return
    found = Codec(new).decode(Codec(old).encode(row))
    assert list(found) == list(new.names)
    for field in new.fields:
        was = old.field(field.name)
        if was is None or row[field.name] is None:
            assert same(found[field.name], field.default)
        elif isinstance(field.kind, Plain | Digits | Choice):
            assert found[field.name] == row[field.name] or same(found[field.name], row[field.name])
