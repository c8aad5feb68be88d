"""Any value of any schema decodes to what was encoded; the fast and the strict decoder agree."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from decimal import Decimal
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from headrace.model.codec.codec import new_codec
from headrace.model.codec.fast_decode import fast_decoder
from headrace.model.codec.json_text import parse
from headrace.model.codec.strict_decode import fit_fields
from headrace.model.errors import ValueDoesNotFit
from headrace.model.kinds import Field, List, Map, Record, Scalar
from headrace.model.schema import Schema, fields_from_json, fields_to_json

from .shapes import OFFSETS, SCHEMAS, SINGLE, rows, same, values

NOT_A_KEY = (Scalar("float"), Scalar("bytes"))
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


def decode_fast(schema: Schema, raw: bytes) -> dict[str, Any] | None:
    decoder = fast_decoder(schema.fields)
    return None if decoder is None else decoder.decode(raw)


@given(schemas_with_rows())
def test_encoded_values_decode_to_the_same_fields(schema_and_row: tuple[Schema, dict[str, Any]]) -> None:
    schema, row = schema_and_row
    codec = new_codec(schema)
    raw = codec.encode(dict(reversed(row.items())))
    assert same(codec.decode(raw), row)
    assert list(json.loads(raw)) == list(schema.names)


@given(schemas_with_rows())
def test_the_fast_decoder_agrees_and_returns_none_only_for_doubtful_keys(
    schema_and_row: tuple[Schema, dict[str, Any]],
) -> None:
    schema, row = schema_and_row
    raw = new_codec(schema).encode(row)
    fast_row = decode_fast(schema, raw)
    # A text that begins with a colon, or has a quote or a blank before one, may look like the end of a key.
    doubtful = b"\\" in raw or re.search(rb'[\[{,:]":|[ \t\r\n]:', raw)
    if fast_decoder(schema.fields) and not doubtful:
        assert fast_row is not None
    assert fast_row is None or same(fast_row, row)
    assert same(fit_fields(schema.fields, parse(raw)), row)


@st.composite
def damaged_values(draw: st.DrawFn) -> tuple[Schema, bytes]:
    """A value with parts removed, repeated, or replaced by texts of ``POISON``."""
    schema, row = draw(schemas_with_rows())
    raw = new_codec(schema).encode(row)
    for _ in range(draw(st.integers(1, 3))):
        start = draw(st.integers(0, len(raw)))
        end = draw(st.integers(start, min(len(raw), start + 12)))
        poison = st.sampled_from(POISON).map(lambda text: text.encode("utf-8", "surrogatepass"))
        replacement = draw(
            st.one_of(st.just(raw[start:end] * 2), poison, st.binary(max_size=3), st.just(b" "))
        )
        raw = raw[:start] + replacement + raw[end:]
    return schema, raw


@st.composite
def values_with_wrong_field(draw: st.DrawFn) -> tuple[Schema, bytes]:
    """A value with one field of another kind."""
    schema, row = draw(schemas_with_rows())
    written = json.loads(new_codec(schema).encode(row), parse_float=Decimal)
    parts = {name: json.dumps(value, default=str) for name, value in written.items()}
    parts[draw(st.sampled_from(schema.names))] = draw(st.sampled_from(POISON))
    body = ",".join(f"{json.dumps(name)}:{text}" for name, text in parts.items())
    return schema, f"{{{body}}}".encode("utf-8", "surrogatepass")


@given(damaged_values() | values_with_wrong_field())
@example((Schema("Any", (Field("a", Scalar("int"), False),)), b'{"a":1,"a" :1}'))
@example((Schema("Any", (Field("a", Scalar("int"), False),)), b'{"a":1,"b":"\xff"}'))
@example((Schema("Any", (Field("a", Scalar("int"), False),)), b'{"a":1,"\\u0061":2}'))
def test_invalid_input_raises_only_value_does_not_fit_and_both_decoders_agree(
    schema_and_bytes: tuple[Schema, bytes],
) -> None:
    schema, raw = schema_and_bytes
    fast_row = decode_fast(schema, raw)
    strict_row, reason = outcome(lambda: fit_fields(schema.fields, parse(raw)))
    assert fast_row is None or same(fast_row, strict_row)
    found, same_reason = outcome(lambda: new_codec(schema).decode(raw))
    assert same(found, strict_row)
    assert same_reason == reason
    # The reason can be encoded in the header of a dead letter.
    assert reason.encode() or strict_row is not None


def outcome(read: Callable[[], dict[str, Any]]) -> tuple[dict[str, Any] | None, str]:
    """The value, or the reason why it was refused."""
    try:
        return read(), ""
    except ValueDoesNotFit as error:
        return None, error.message


INT = Scalar("int")
NODE = (Field("a", INT, True), Field("b", Map(Map(INT)), True))
TWIN_SCHEMA = (*NODE, Field("c", List(Record(NODE)), True))


@given(st.data())
def test_duplicate_keys_are_found_at_any_depth_and_in_any_spelling(data: st.DataObject) -> None:
    blank = st.sampled_from(["", "", " ", "\n", "\t", " \r"])
    has_duplicates = False

    def written(pairs: list[tuple[str, str]]) -> str:
        nonlocal has_duplicates
        names = [json.loads(f'"{name}"') for name, _ in pairs]
        has_duplicates = has_duplicates or len(set(names)) < len(names)
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
    codec = new_codec(Schema("Twins", TWIN_SCHEMA))
    found, reason = outcome(lambda: codec.decode(raw))
    assert (found is None) is has_duplicates
    assert ("twice" in reason) is has_duplicates


@given(SCHEMAS)
def test_a_schema_is_unchanged_after_conversion_to_json_and_back(schema: Schema) -> None:
    through = json.loads(json.dumps(fields_to_json(schema.fields)))
    back = fields_from_json(through)
    assert [(field.name, field.kind, field.optional) for field in _flat(back)] == [
        (field.name, field.kind, field.optional) for field in _flat(schema.fields)
    ]
    assert all(same(field.default, other.default) for field, other in zip(back, schema.fields, strict=True))


def _flat(fields: tuple[Field, ...]) -> list[Field]:
    return [Field(field.name, _without_defaults(field.kind), field.optional) for field in fields]


def _without_defaults(kind: Any) -> Any:
    match kind:
        case Record(fields):
            return Record(tuple(_flat(fields)))
        case List(of, optional):
            return List(_without_defaults(of), optional)
        case Map(of, optional):
            return Map(_without_defaults(of), optional)
    return kind


@st.composite
def keys_with_rows(draw: st.DrawFn) -> tuple[Schema, dict[str, Any]]:
    kinds = draw(st.lists(SINGLE.filter(lambda kind: kind not in NOT_A_KEY), min_size=1, max_size=3))
    fields = tuple(Field(f"k{at}", kind, False) for at, kind in enumerate(kinds))
    return Schema("Keyed", fields), draw(rows(fields))


@given(keys_with_rows())
def test_an_encoded_key_decodes_to_the_same_fields(schema_and_row: tuple[Schema, dict[str, Any]]) -> None:
    schema, row = schema_and_row
    key = new_codec(schema).key(schema.names)
    assert same(key.decode(key.encode(row)), row)


@given(values(Scalar("time")), OFFSETS)
def test_one_moment_has_one_text_in_every_time_zone(moment: Any, offset: Any) -> None:
    codec = new_codec(Schema("At", (Field("at", Scalar("time"), False),)))
    try:
        elsewhere = moment.astimezone(offset)
    except OverflowError:
        return
    assert codec.encode({"at": elsewhere}) == codec.encode({"at": moment})
    foreign = json.dumps({"at": elsewhere.isoformat()}).encode()
    assert codec.decode(foreign) == {"at": moment}
