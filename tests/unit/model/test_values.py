from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from enum import StrEnum
from typing import Annotated, Any

import pytest

from headrace import App, Digits
from headrace.model.codec.codec import codec_of, decode_key, decode_value, encode_key, encode_value
from headrace.model.codec.json_codec import JsonCodec
from headrace.model.errors import AppError, ValueDoesNotFit
from headrace.model.schema import schema_of


class Status(StrEnum):
    OPEN = "open"
    PAID = "paid"


@dataclass(frozen=True)
class Item:
    sku: str
    price: Decimal


@dataclass(frozen=True)
class Order:
    order_id: str
    quantity: int
    weight: float
    gift: bool
    total: Annotated[Decimal, Digits(20, 4)]
    at: datetime
    day: date
    seal: bytes
    status: Status
    items: list[Item]
    tags: dict[str, int]
    note: str | None = None
    source: str = "web"
    codes: list[str] = field(default_factory=list)


ORDER = Order(
    order_id="o1",
    quantity=3,
    weight=0.1,
    gift=True,
    total=Decimal("12.5"),
    at=datetime(2026, 1, 31, 12, tzinfo=UTC),
    day=date(2026, 1, 31),
    seal=b"\x00\xff",
    status=Status.PAID,
    items=[Item("a", Decimal(1))],
    tags={"x": 1},
)
WRITTEN = (
    b'{"order_id":"o1","quantity":3,"weight":0.1,"gift":true,"total":12.5000,"at":"2026-01-31T12:00:00.000000Z",'
    b'"day":"2026-01-31","seal":"AP8=","status":"paid","items":[{"sku":"a","price":1.000000}],"tags":{"x":1},'
    b'"note":null,"source":"web","codes":[]}'
)
SCHEMA = schema_of(Order)
app = App("shop")
orders = app.topic("orders", Order, key="order_id")


def decode(**changed: str) -> dict[str, Any]:
    """Decode an order with some fields replaced; an empty replacement removes the field."""
    parts = {
        "order_id": '"o1"',
        "quantity": "3",
        "weight": "0.1",
        "gift": "true",
        "total": "12.5",
        "at": '"2026-01-31T12:00:00Z"',
        "day": '"2026-01-31"',
        "seal": '"AP8="',
        "status": '"paid"',
        "items": '[{"sku":"a","price":1}]',
        "tags": '{"x":1}',
        **changed,
    }
    body = ",".join(f'"{name}":{text}' for name, text in parts.items() if text)
    return decode_value(SCHEMA, f"{{{body}}}".encode("utf-8", "surrogatepass"))


def test_an_order_is_encoded_with_all_fields_in_schema_order() -> None:
    assert encode_value(SCHEMA, ORDER) == WRITTEN
    assert orders.encode(ORDER) == (b"o1", WRITTEN)


def test_a_mapping_is_encoded_like_the_dataclass() -> None:
    fields = {**vars(ORDER), "items": [{"sku": "a", "price": 1}], "status": "paid"}
    del fields["note"], fields["source"], fields["codes"]
    assert encode_value(SCHEMA, fields) == WRITTEN


def test_written_values_are_read_as_python_values() -> None:
    assert decode_value(SCHEMA, WRITTEN) == {
        **vars(ORDER),
        "total": Decimal("12.5000"),
        "items": [{"sku": "a", "price": Decimal("1.000000")}],
        "status": "paid",
    }


def test_old_events_are_read_with_the_defaults_of_fields_they_do_not_have() -> None:
    first, second = decode(), decode(note="null", source="null", codes="null")
    assert (first["note"], first["source"], first["codes"]) == (None, "web", [])
    assert second == first
    first["codes"].append("changed")
    assert decode()["codes"] == []


def test_fields_that_the_schema_does_not_know_are_ignored() -> None:
    assert decode(unknown='{"deep":[1,{"a":null}]}') == decode()


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("1", 1.0),
        ("-0.0", -0.0),
        ("1e3", 1000.0),
        ('"NaN"', math.nan),
        ('"Infinity"', math.inf),
        ('"-Infinity"', -math.inf),
    ],
)
def test_nan_and_infinities_are_read_as_floats(written: str, read: float) -> None:
    assert repr(decode(weight=written)["weight"]) == repr(read)
    assert repr(decode_value(SCHEMA, encode_value(SCHEMA, replace(ORDER, weight=read)))["weight"]) == repr(
        read
    )


@pytest.mark.parametrize(
    "text", ["0.1", "1e-4", "9999999999999999.9999", "-9999999999999999.9999", "0", "-0", "12.50000000"]
)
def test_exact_numbers_stay_exact_as_numbers_and_as_text(text: str) -> None:
    for written in (text, f'"{text}"'):
        total = decode(total=written)["total"]
        assert total == Decimal(text)
        assert (total.as_tuple().exponent, total.is_signed()) == (-4, text.startswith("-9"))


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("2026-01-31T12:00:00.123456Z", datetime(2026, 1, 31, 12, 0, 0, 123456, UTC)),
        ("2026-01-31T12:00:00.1+05:30", datetime(2026, 1, 31, 6, 30, 0, 100000, UTC)),
        ("2026-01-31 12:00:00-00:00", datetime(2026, 1, 31, 12, 0, 0, 0, UTC)),
        ("2026-01-31T23:59:59.999999999Z", datetime(2026, 1, 31, 23, 59, 59, 999999, UTC)),
        ("0001-01-01T00:00:00Z", datetime(1, 1, 1, tzinfo=UTC)),
        ("9999-12-31T23:59:59Z", datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)),
    ],
)
def test_times_are_converted_to_utc_and_truncated_to_microseconds(text: str, moment: datetime) -> None:
    found = decode(at=f'"{text}"')["at"]
    assert found == moment
    assert found.tzinfo is UTC


def test_the_largest_64_bit_numbers_and_nul_characters_are_kept() -> None:
    assert decode(quantity=str(2**63 - 1))["quantity"] == 2**63 - 1
    assert decode(quantity=str(-(2**63)))["quantity"] == -(2**63)
    assert decode(order_id=r'"a\u0000b"')["order_id"] == "a\0b"
    assert decode(order_id='"\\ud83d\\ude00"')["order_id"] == "\U0001f600"


DEEP = 100_000
UNFIT = {
    "nothing": (b"", "not JSON"),
    "no JSON": (b"{'order_id': 1}", "not JSON"),
    "cut short": (WRITTEN[:-1], "not JSON"),
    "more behind it": (WRITTEN + b"{}", "not JSON"),
    "a list": (b"[1]", "expected an object, found a list"),
    "null": (b"null", "expected an object, found null"),
    "100,000 levels of lists": (b"[" * DEEP + b"]" * DEEP, "nested deeper than 200 levels"),
    "100,000 levels of objects": (b'{"a":' * DEEP + b"1" + b"}" * DEEP, "nested deeper than 200 levels"),
    "100,000 levels in an unknown field": (
        WRITTEN[:-1] + b',"more":' + b"[" * DEEP + b"]" * DEEP + b"}",
        "nested deeper than 200 levels",
    ),
    "UTF-8 cut short": (WRITTEN.replace(b"o1", b"\xe2\x82"), "not UTF-8: byte 13 is 0xe2"),
    "invalid UTF-8 in an unknown field": (WRITTEN[:-1] + b',"more":"\xff"}', "not UTF-8"),
    "a surrogate as bytes": (WRITTEN.replace(b"o1", b"\xed\xa0\x80"), "not UTF-8"),
    "UTF-16": (WRITTEN.decode().encode("utf-16"), "not UTF-8"),
    "a byte order mark": (b"\xef\xbb\xbf" + WRITTEN, "not JSON"),
    "a field twice": (WRITTEN[:-1] + b',"quantity":3}', "'quantity' occurs twice"),
    "a field twice, with a space before the second colon": (
        WRITTEN[:-1] + b',"quantity" :3}',
        "'quantity' occurs twice",
    ),
    "a field twice, once escaped": (WRITTEN[:-1] + b',"\\u0071uantity":3}', "'quantity' occurs twice"),
    "a key of a map twice": (WRITTEN.replace(b'{"x":1}', b'{"x":1,"x":1}'), "'x' occurs twice"),
    "a field of an item twice": (
        WRITTEN.replace(b'"sku":"a"', b'"sku":"a","sku":"a"'),
        "'sku' occurs twice",
    ),
}


@pytest.mark.parametrize("what", UNFIT)
def test_a_value_that_is_not_a_valid_object_is_refused_with_the_reason(what: str) -> None:
    raw, reason = UNFIT[what]
    with pytest.raises(ValueDoesNotFit) as caught:
        decode_value(SCHEMA, raw)
    assert caught.value.message.startswith("the value: ")
    assert reason in caught.value.message


@pytest.mark.parametrize(
    ("field_name", "written", "reason"),
    [
        ("order_id", "", "order_id: the required field is missing (expected text)"),
        ("order_id", "null", "order_id: expected text, found null"),
        ("order_id", "7", "order_id: expected text, found the number 7"),
        ("order_id", r'"\ud800"', r"['order_id']: half a surrogate pair, \ud800, is not a character"),
        ("order_id", r'"\ud800\u0041"', r"['order_id']: half a surrogate pair, \ud800, is not a character"),
        ("order_id", '"a\x00b"', "the value: not JSON"),
        ("unknown", r'["\udfff"]', r"['unknown'][0]: half a surrogate pair, \udfff, is not a character"),
        ("quantity", '"3"', "quantity: expected a 64-bit integer, found the text '3'"),
        ("quantity", "3.0", "quantity: expected a 64-bit integer, found the number 3.0"),
        ("quantity", "true", "quantity: expected a 64-bit integer, found true"),
        (
            "quantity",
            "9223372036854775808",
            "quantity: expected a 64-bit integer, found the number 92233",
        ),
        (
            "quantity",
            "-9223372036854775809",
            "quantity: expected a 64-bit integer, found the number -9223",
        ),
        ("quantity", "9" * 900, "99… (900 characters)"),
        ("quantity", "1" * 5_000, "the value: a number has 5000 characters (limit 1000)"),
        ("weight", "0." + "3" * 5_000, "the value: a number has 5002 characters (limit 1000)"),
        ("total", "1." + "0" * 5_000, "the value: a number has 5002 characters (limit 1000)"),
        ("unknown", "1" * 5_000, "the value: a number has 5000 characters (limit 1000)"),
        ("weight", "NaN", 'the value: not JSON: NaN is not a number; a float field accepts the text "NaN"'),
        ("weight", "1e400", "weight: expected a number,"),
        ("weight", '"nan"', "found the text 'nan'"),
        ("gift", "1", "gift: expected true or false, found the number 1"),
        (
            "total",
            "0.00001",
            "total: expected an exact number with up to 16 digits before the point and 4 after it",
        ),
        ("total", "10000000000000000", "found the number 10000000000000000"),
        ("total", "1e99999999999999999999", "found the number 1e99999999999999999999"),
        ("total", '"NaN"', "found the text 'NaN'"),
        ("total", '"1_0"', "found the text '1_0'"),
        ("total", "[1]", "found a list"),
        (
            "at",
            '"2026-01-31T12:00:00"',
            "at: expected a time with a UTC offset, e.g. 2026-01-31T12:00:00Z, found the text",
        ),
        ("at", '"2026-02-30T12:00:00Z"', "at: expected a time"),
        ("at", '"2026-W05-6T12:00:00Z"', "at: expected a time"),
        ("at", '"10000-01-01T00:00:00Z"', "at: expected a time"),
        ("at", '"0001-01-01T00:00:00+01:00"', "at: expected a time"),
        ("at", '"yesterday"', "at: expected a time"),
        ("at", "1769860800", "at: expected a time"),
        ("day", '"2026-02-30"', "day: expected a date, e.g. 2026-01-31, found the text '2026-02-30'"),
        ("day", '"20260131"', "day: expected a date"),
        ("seal", '"AP8"', "seal: expected bytes in base64, found the text 'AP8'"),
        ("seal", '"é"', "seal: expected bytes in base64"),
        ("status", '"lost"', "status: expected one of 'open', 'paid', found the text 'lost'"),
        ("items", "{}", "items: expected a list, found an object"),
        (
            "items",
            '[{"sku":"a","price":1},{"sku":"b"}]',
            "items[1].price: the required field is missing",
        ),
        ("items", '[{"sku":"a","price":"x"}]', "items[0].price: expected an exact number"),
        ("items", "[null]", "items[0]: expected an object, found null"),
        ("tags", '{"x":1,"y":null}', "tags['y']: expected a 64-bit integer"),
        ("tags", '{"' + "k" * 999 + '":"v"}', "k… (1001 characters)]: expected a 64-bit integer"),
        ("codes", '["a",null]', "codes[1]: expected text, found null"),
    ],
)
def test_a_field_that_does_not_fit_is_reported_with_the_value_found(
    field_name: str, written: str, reason: str
) -> None:
    with pytest.raises(ValueDoesNotFit) as caught:
        decode(**{field_name: written})
    assert reason in caught.value.message
    assert len(caught.value.message) < 400


def test_many_brackets_side_by_side_are_not_deep() -> None:
    assert decode(unknown="[" + ",".join(["[]"] * 1_000) + ',"[[[["]') == decode()


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"order_id": None}, "order_id: expected text, found NoneType None"),
        ({"order_id": "\ud800"}, "order_id: half a surrogate pair, \\ud800, is not a character"),
        ({"quantity": 2**63}, "quantity: expected a 64-bit integer, found int 9223372036854775808"),
        ({"quantity": 10**5_000}, "quantity: expected a 64-bit integer, found a huge int"),
        ({"quantity": True}, "found bool True"),
        ({"weight": 10**400}, "weight: expected a number"),
        ({"weight": "NaN"}, "weight: expected a number"),
        (
            {"total": 12.5},
            "total: 12.5 is a float, and floats are not exact: use Decimal('12.5') if you mean that number",
        ),
        (
            {"total": Decimal("0.00001")},
            "total: expected an exact number with up to 16 digits before the point",
        ),
        ({"total": Decimal("NaN")}, "total: expected an exact number"),
        ({"at": datetime(2026, 1, 31, 12)}, "at: the time 2026-01-31T12:00:00 has no offset: set one"),
        ({"at": datetime(1, 1, 1, tzinfo=timezone(timedelta(hours=1)))}, "is not in the years 1 to 9999"),
        ({"at": date(2026, 1, 31)}, "at: expected a time"),
        ({"day": datetime(2026, 1, 31, tzinfo=UTC)}, "day: expected a date"),
        ({"seal": "AP8="}, "seal: expected bytes"),
        ({"status": "lost"}, "status: expected one of 'open', 'paid', found str 'lost'"),
        ({"items": "ab"}, "items: expected a list"),
        ({"items": [{"sku": "a"}]}, "items[0].price: the required field is missing"),
        ({"items": [7]}, "items[0]: expected a dataclass or a mapping, found int 7"),
        ({"tags": {"x": "1"}}, "tags['x']: expected a 64-bit integer"),
        ({"tags": {7: 1}}, "tags[7]: expected text, found int 7"),
        ({"source": None}, "source: expected text, found NoneType None"),
        ({"quantitty": 1}, "the value: the schema has no field 'quantitty'"),
    ],
)
def test_encoding_refuses_a_value_that_does_not_fit_the_schema(
    changed: Mapping[str, Any], reason: str
) -> None:
    with pytest.raises(ValueDoesNotFit) as caught:
        encode_value(SCHEMA, {**vars(ORDER), **changed})
    assert reason in caught.value.message


@dataclass(frozen=True)
class HeavyItem(Item):
    weight: int


def test_a_misspelt_optional_field_is_an_error() -> None:
    fields = {name: value for name, value in vars(ORDER).items() if name != "note"}
    with pytest.raises(ValueDoesNotFit, match="no field 'note_'"):
        encode_value(SCHEMA, {**fields, "note_": "x"})


def test_a_dataclass_with_a_field_that_the_schema_does_not_have_is_refused() -> None:
    with pytest.raises(ValueDoesNotFit, match="no field 'weight'"):
        encode_value(schema_of(Item), HeavyItem("a", Decimal(1), 2))


@dataclass(frozen=True)
class Bucket:
    product_id: str
    minute: datetime
    level: int
    open: bool
    price: Decimal
    day: date
    status: Status


BUCKET = Bucket(
    'p"1',
    datetime(2026, 1, 31, 13, tzinfo=timezone(timedelta(hours=1))),
    -7,
    False,
    Decimal(2),
    date(2026, 1, 31),
    Status.OPEN,
)


@pytest.mark.parametrize(
    ("key", "written"),
    [
        ("product_id", b'p"1'),
        ("minute", b"2026-01-31T12:00:00.000000Z"),
        ("level", b"-7"),
        ("open", b"false"),
        ("price", b"2.000000"),
        ("day", b"2026-01-31"),
        ("status", b"open"),
        (["product_id", "minute"], b'{"product_id":"p\\"1","minute":"2026-01-31T12:00:00.000000Z"}'),
        (["level", "product_id"], b'{"level":-7,"product_id":"p\\"1"}'),
    ],
)
def test_a_key_of_one_field_is_text_and_a_composite_key_is_a_json_object(
    key: str | list[str], written: bytes
) -> None:
    topic = App("shop").topic("buckets", Bucket, key=key)
    assert encode_key(topic, BUCKET) == written
    assert topic.encode(BUCKET)[0] == written
    row = decode_value(schema_of(Bucket), encode_value(schema_of(Bucket), BUCKET))
    assert decode_key(topic, written) == {name: row[name] for name in topic.key}


@pytest.mark.parametrize(
    ("key", "raw", "reason"),
    [
        ("product_id", b"\xff", "product_id: not UTF-8"),
        ("level", b"seven", "level: not JSON"),
        ("minute", b"noon", "minute: expected a time"),
        (["level", "open"], b'{"level":1}', "open: the required field is missing"),
        (["level", "open"], b"7", "expected an object"),
    ],
)
def test_bytes_that_are_not_a_valid_key_are_refused(key: str | list[str], raw: bytes, reason: str) -> None:
    with pytest.raises(ValueDoesNotFit, match=reason):
        decode_key(App("shop").topic("buckets", Bucket, key=key), raw)


def test_a_topic_without_a_key_has_records_without_one() -> None:
    key, value = App("shop").topic("orders", Order).encode(ORDER)
    assert (key, value) == (None, WRITTEN)


def test_a_topic_without_a_declared_schema_cannot_be_encoded() -> None:
    with pytest.raises(AppError, match=r"declare a schema: app\.topic\('sales'") as caught:
        App("shop").topic("sales", key="a").encode({"a": 1})
    assert caught.value.code == "HR-APP-NO-SCHEMA"


def test_a_codec_is_created_once_per_schema() -> None:
    assert codec_of(SCHEMA) is codec_of(SCHEMA)
    assert isinstance(codec_of(schema_of(Order)), JsonCodec)
