"""Values as rows: the fast and the strict decoder agree on any bytes."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from decimal import Decimal
from enum import StrEnum
from typing import Annotated, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.model.codec.codec import encode_value, new_codec
from headrace.model.errors import ValueDoesNotFit
from headrace.model.kinds import Digits
from headrace.model.schema import Schema, schema_of
from headrace.stores.position import ViewSchema
from headrace.stores.rows import RowDecoder, to_store_value


class Colour(StrEnum):
    RED = "red"
    GREEN = "green"


@dataclass(frozen=True)
class Part:
    name: str
    price: Decimal


@dataclass(frozen=True)
class Flat:
    key: str
    number: int
    share: float
    good: bool
    at: datetime
    day: date
    raw: bytes
    colour: Colour
    price: Decimal
    exact: Annotated[Decimal, Digits(4, 4)]
    whole: Annotated[Decimal, Digits(3, 0)]
    some_text: str | None = None
    some_number: int = 7
    some_time: datetime | None = None
    some_price: Decimal | None = None
    other_price: Decimal = Decimal("-1.5")
    some_bytes: bytes = b"\x00"
    some_share: float = math.inf


@dataclass(frozen=True)
class Nested:
    key: str
    tags: list[str]
    parts: dict[str, Part]
    first: Part | None = None
    others: list[Decimal | None] = field(default_factory=lambda: [Decimal(1), None])


FLAT, NESTED = schema_of(Flat), schema_of(Nested)
NOON = datetime(2026, 1, 31, 12, 0, 0, 1, tzinfo=UTC)
ORDINARY = Flat(
    *(
        "k",
        1,
        0.5,
        True,
        NOON,
        NOON.date(),
        b"hi",
        Colour.RED,
        Decimal("12.5"),
        Decimal("0.1234"),
        Decimal(12),
    )
)

_UTC = st.just(UTC)
_values = st.builds(
    Flat,
    key=st.text(st.characters(exclude_categories=["Cs"])),
    number=st.integers(-(2**63), 2**63 - 1),
    share=st.floats(),
    at=st.datetimes(timezones=_UTC),
    some_time=st.none() | st.datetimes(timezones=_UTC),
    price=st.decimals(-999_999_999_999, 999_999_999_999, places=6),
    some_price=st.none() | st.decimals(-99, 99, places=3),
    exact=st.decimals(Decimal("-0.9999"), Decimal("0.9999"), places=4),
    whole=st.decimals(-999, 999, places=0),
)
_unusual_json = st.sampled_from(
    [
        *(
            '"x"',
            "null",
            "true",
            "1",
            "-0",
            "1.0",
            "1.5",
            "1e2",
            "12.500000",
            "-0.000000",
            "-3.250000",
            "0.5",
        ),
        *(
            "9223372036854775808",
            "1e400",
            "NaN",
            '"NaN"',
            '"-Infinity"',
            '"12.5"',
            "[]",
            "{}",
            '"red"',
            '"aGk="',
        ),
        *('"2026-01-31T12:00:00.000000Z"', '"2026-01-31T12:00:00Z"', '"2026-01-31T13:00:00.5+01:00"'),
        *('"2026-01-31T24:00:00.000000Z"', '"2026-02-30T12:00:00.000000Z"', '"0000-01-31T12:00:00.000000Z"'),
        *('"2026-01-31"', '"2026-13-31"', '"aGl="', '"aGk"', '"\\u0000"', '"\\ud800"', '"a\\":b"', "9" * 400),
    ]
)


def view_schema_of(schema: Schema) -> ViewSchema:
    return ViewSchema(schema.fields, ("key",))


DECODERS = {item.name: RowDecoder(view_schema_of(item), ("key",)) for item in (FLAT, NESTED)}


def decode_strictly(schema: Schema, value: bytes) -> tuple[Any, ...] | None:
    """Decode with the strict decoder only. Return None for a value that does not match the schema."""
    try:
        decoded = new_codec(schema).decode(value)
    except ValueDoesNotFit:
        return None
    kinds = [column.kind for column in schema.fields]
    return tuple(
        None if item is None else to_store_value(kind)(item)
        for kind, item in zip(kinds, decoded.values(), strict=True)
    )


def decode_fast(schema: Schema, value: bytes) -> tuple[Any, ...] | None:
    try:
        return DECODERS[schema.name].row(value)
    except ValueDoesNotFit:
        return None


@given(_values)
def test_encoded_rows_decode_to_their_plain_values(value: Flat) -> None:
    written = encode_value(FLAT, value)
    row = DECODERS["Flat"].row(written)
    assert row == decode_strictly(FLAT, written)
    assert row[:2] == (value.key, value.number)
    assert row[2] == value.share or (row[2] == "NaN" and math.isnan(value.share))
    assert row[4] == value.at.strftime("%Y-%m-%dT%H:%M:%S.%fZ").rjust(27, "0")
    assert Decimal(str(row[8])) == value.price
    assert str(row[8])[-7] == "."


@given(
    changed=st.dictionaries(st.sampled_from(FLAT.names), _unusual_json, max_size=4),
    missing=st.sets(st.sampled_from(FLAT.names), max_size=3),
    duplicate=st.none() | st.sampled_from(FLAT.names),
    spaces=st.sampled_from(["", " ", "\n\t"]),
    before_colon=st.booleans(),
)
def test_the_fast_and_the_strict_decoder_agree(
    changed: dict[str, str], missing: set[str], duplicate: str | None, spaces: str, before_colon: bool
) -> None:
    parts = {name: json.dumps(value) for name, value in json.loads(encode_value(FLAT, ORDINARY)).items()}
    pairs = [(name, value) for name, value in (parts | changed).items() if name not in missing]
    if duplicate is not None:
        pairs.append((duplicate, "null"))
    colon = f"{spaces}:{spaces}" if before_colon else f":{spaces}"
    text = "{" + ",".join(f'{spaces}"{name}"{colon}{item}' for name, item in pairs) + "}"
    value = text.encode()
    assert decode_fast(FLAT, value) == decode_strictly(FLAT, value)


@given(st.binary(max_size=60) | st.text(max_size=40).map(str.encode))
def test_the_fast_and_the_strict_decoder_agree_on_any_bytes(value: bytes) -> None:
    for schema in (FLAT, NESTED):
        assert decode_fast(schema, value) == decode_strictly(schema, value)


def test_lists_maps_and_records_are_compact_json_with_exact_numbers() -> None:
    value = (
        b"""{"key": "k", "tags": ["a", "\xc3\xa4"], "parts": {"x": {"price": 1.5, "name": "n", "more": 1}}}"""
    )
    assert DECODERS["Nested"].row(value) == (
        "k",
        '["a","ä"]',
        '{"x":{"name":"n","price":1.500000}}',
        None,
        "[1.000000,null]",
    )


def test_a_null_key_does_not_fit() -> None:
    decoder = RowDecoder(ViewSchema(FLAT.fields, ("some_text",)), ("some_text",))
    with pytest.raises(ValueDoesNotFit, match="some_text"):
        decoder.row(encode_value(FLAT, ORDINARY))


@pytest.mark.parametrize(
    ("key", "text", "values"),
    [
        (("key",), b"any text", ("any text",)),
        (("number",), b"-5", (-5,)),
        (("at",), b"2026-01-31T13:00:00+01:00", ("2026-01-31T12:00:00.000000Z",)),
        (("price",), b"12.5", ("12.500000",)),
        (("good",), b"true", (True,)),
        (("key", "number"), b'{"number":1,"key":"k"}', ("k", 1)),
        (("number", "key"), b'{"number":1,"key":"k"}', (1, "k")),
    ],
)
def test_a_key_decodes_to_its_encoded_value(
    key: tuple[str, ...], text: bytes, values: tuple[Any, ...]
) -> None:
    assert RowDecoder(ViewSchema(FLAT.fields, key), tuple(sorted(key))).key(text) == values


@pytest.mark.parametrize("text", [None, b"\xff", b"", b"[1]", b"x", b"9" * 30])
def test_the_error_names_a_key_that_does_not_fit(text: bytes | None) -> None:
    with pytest.raises(ValueDoesNotFit):
        RowDecoder(ViewSchema(FLAT.fields, ("number",)), ("number",)).key(text)
