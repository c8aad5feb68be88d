"""Whatever the schema and whatever the value: what is written is read back, and what is not sure is read with care."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from decimal import Decimal
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from headrace.model.errors import ValueDoesNotFit
from headrace.model.fitting import fit_fields
from headrace.model.json_text import parse
from headrace.model.kinds import Field, Many, Named, Plain, Record
from headrace.model.quick import quick_decoder
from headrace.model.schema import Schema
from headrace.model.schema_json import fields_from_json, fields_to_json
from headrace.model.values import Codec

from .shapes import OFFSETS, SCHEMAS, SINGLE, rows, same, values

NOT_A_KEY = (Plain("float"), Plain("bytes"))
POISON = [
    *(
        "NaN",
        "-Infinity",
        "1e400",
        "9223372036854775808",
        "1" * 5000,
        "0." + "3" * 5000,
        "01",
        "1.0",
        "-0",
        "1e2",
    ),
    *(
        r'"\ud800"',
        r'"\udc00\ud800"',
        r'"\u0000"',
        '"\x00"',
        '"\n"',
        "null",
        "{}",
        "[]",
        '"',
        "",
        "tru",
        "[null]",
    ),
    *(
        '{"a":1,"a":2}',
        '"2026-02-30T00:00:00Z"',
        '"2026-01-31T12:00:00"',
        '"YQ"',
        '"1_0"',
        '" 1"',
        '"12.5"',
        '"NaN"',
    ),
]


@st.composite
def schemas_with_rows(draw: st.DrawFn) -> tuple[Schema, dict[str, Any]]:
    schema = draw(SCHEMAS)
    return schema, draw(rows(schema.fields))


def quickly(schema: Schema, raw: bytes) -> dict[str, Any] | None:
    decoder = quick_decoder(schema.fields)
    return None if decoder is None else decoder.decode(raw)


@given(schemas_with_rows())
def test_what_is_written_is_read_back_field_by_field(made: tuple[Schema, dict[str, Any]]) -> None:
    schema, row = made
    codec = Codec(schema)
    raw = codec.encode(dict(reversed(row.items())))
    assert same(codec.decode(raw), row)
    assert list(json.loads(raw)) == list(schema.names)


@given(schemas_with_rows())
def test_the_quick_way_takes_all_but_what_looks_like_more_keys_and_agrees(
    made: tuple[Schema, dict[str, Any]],
) -> None:
    schema, row = made
    raw = Codec(schema).encode(row)
    quick = quickly(schema, raw)
    # A text that begins with a colon, or has a quote or a blank before one, may look like the end of a key.
    doubtful = b"\\" in raw or re.search(rb'[\[{,:]":|[ \t\r\n]:', raw)
    if quick_decoder(schema.fields) and not doubtful:
        assert quick is not None
    assert quick is None or same(quick, row)
    assert same(fit_fields(schema.fields, parse(raw)), row)


@st.composite
def damaged(draw: st.DrawFn) -> tuple[Schema, bytes]:
    """A value with parts of it cut out, doubled, or replaced by what is known to hurt."""
    schema, row = draw(schemas_with_rows())
    raw = Codec(schema).encode(row)
    for _ in range(draw(st.integers(1, 3))):
        start = draw(st.integers(0, len(raw)))
        end = draw(st.integers(start, min(len(raw), start + 12)))
        poison = st.sampled_from(POISON).map(lambda text: text.encode("utf-8", "surrogatepass"))
        put = draw(st.one_of(st.just(raw[start:end] * 2), poison, st.binary(max_size=3), st.just(b" ")))
        raw = raw[:start] + put + raw[end:]
    return schema, raw


@st.composite
def replaced(draw: st.DrawFn) -> tuple[Schema, bytes]:
    """A value of which one field is something else."""
    schema, row = draw(schemas_with_rows())
    written = json.loads(Codec(schema).encode(row), parse_float=Decimal)
    parts = {name: json.dumps(value, default=str) for name, value in written.items()}
    parts[draw(st.sampled_from(schema.names))] = draw(st.sampled_from(POISON))
    body = ",".join(f"{json.dumps(name)}:{text}" for name, text in parts.items())
    return schema, f"{{{body}}}".encode("utf-8", "surrogatepass")


@given(damaged() | replaced())
@example((Schema("Any", (Field("a", Plain("int"), False),)), b'{"a":1,"a" :1}'))
@example((Schema("Any", (Field("a", Plain("int"), False),)), b'{"a":1,"b":"\xff"}'))
@example((Schema("Any", (Field("a", Plain("int"), False),)), b'{"a":1,"\\u0061":2}'))
def test_nothing_but_its_own_error_comes_out_and_both_ways_agree(made: tuple[Schema, bytes]) -> None:
    schema, raw = made
    quick = quickly(schema, raw)
    careful, reason = outcome(lambda: fit_fields(schema.fields, parse(raw)))
    assert quick is None or same(quick, careful)
    found, same_reason = outcome(lambda: Codec(schema).decode(raw))
    assert same(found, careful)
    assert same_reason == reason
    # A dead letter's header can hold it.
    assert reason.encode() or careful is not None


def outcome(read: Callable[[], dict[str, Any]]) -> tuple[dict[str, Any] | None, str]:
    """The value, or why there is none."""
    try:
        return read(), ""
    except ValueDoesNotFit as error:
        return None, error.message


INT = Plain("int")
NODE = (Field("a", INT, True), Field("b", Named(Named(INT)), True))
TWIN_SCHEMA = (*NODE, Field("c", Many(Record(NODE)), True))


@given(st.data())
def test_twin_keys_are_found_wherever_they_are_and_however_they_are_written(data: st.DataObject) -> None:
    blank = st.sampled_from(["", "", " ", "\n", "\t", " \r"])
    twins = False

    def written(pairs: list[tuple[str, str]]) -> str:
        nonlocal twins
        names = [json.loads(f'"{name}"') for name, _ in pairs]
        twins = twins or len(set(names)) < len(names)
        each = [f'"{name}"{data.draw(blank)}:{data.draw(blank)}{value}' for name, value in pairs]
        return "{" + ",".join(each) + "}"

    keys = st.lists(st.sampled_from(["a", "\\u0061", "x", "y"]), max_size=3)

    def number_map() -> str:
        return written([(key, "1") for key in data.draw(keys)])

    def node() -> list[tuple[str, str]]:
        fields = data.draw(st.lists(st.sampled_from(["a", "b", "\\u0062", "unknown"]), max_size=3))
        inner = lambda: written([(key, number_map()) for key in data.draw(keys)])  # noqa: E731
        return [(name, inner() if name in ("b", "\\u0062") else "1") for name in fields]

    parts = node()
    if data.draw(st.booleans()):
        parts.append(
            ("c", "[" + ",".join(written(node()) for _ in range(data.draw(st.integers(0, 2)))) + "]")
        )
    raw = written(parts).encode()
    codec = Codec(Schema("Twins", TWIN_SCHEMA))
    found, reason = outcome(lambda: codec.decode(raw))
    assert (found is None) is twins
    assert ("twice" in reason) is twins


@given(SCHEMAS)
def test_a_schema_goes_through_the_log_unchanged(schema: Schema) -> None:
    through = json.loads(json.dumps(fields_to_json(schema.fields)))
    back = fields_from_json(through)
    assert [(one.name, one.kind, one.optional) for one in _flat(back)] == [
        (one.name, one.kind, one.optional) for one in _flat(schema.fields)
    ]
    assert all(same(one.default, other.default) for one, other in zip(back, schema.fields, strict=True))


def _flat(fields: tuple[Field, ...]) -> list[Field]:
    return [Field(one.name, _without_defaults(one.kind), one.optional) for one in fields]


def _without_defaults(kind: Any) -> Any:
    match kind:
        case Record(fields):
            return Record(tuple(_flat(fields)))
        case Many(of, optional):
            return Many(_without_defaults(of), optional)
        case Named(of, optional):
            return Named(_without_defaults(of), optional)
    return kind


@st.composite
def keys_with_rows(draw: st.DrawFn) -> tuple[Schema, dict[str, Any]]:
    kinds = draw(st.lists(SINGLE.filter(lambda kind: kind not in NOT_A_KEY), min_size=1, max_size=3))
    fields = tuple(Field(f"k{at}", kind, False) for at, kind in enumerate(kinds))
    return Schema("Keyed", fields), draw(rows(fields))


@given(keys_with_rows())
def test_a_key_is_read_back(made: tuple[Schema, dict[str, Any]]) -> None:
    schema, row = made
    key = Codec(schema).key(schema.names)
    assert same(key.decode(key.encode(row)), row)


@given(values(Plain("time")), OFFSETS)
def test_one_moment_is_written_one_way_wherever_it_was_measured(moment: Any, offset: Any) -> None:
    codec = Codec(Schema("At", (Field("at", Plain("time"), False),)))
    try:
        elsewhere = moment.astimezone(offset)
    except OverflowError:
        return
    assert codec.encode({"at": elsewhere}) == codec.encode({"at": moment})
    foreign = json.dumps({"at": elsewhere.isoformat()}).encode()
    assert codec.decode(foreign) == {"at": moment}
