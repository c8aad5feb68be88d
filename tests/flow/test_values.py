"""Decoding and encoding in Spark, compared with the reference codec (``headrace.model.codec``)."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from faults.servers.spark import compiled
from headrace import Digits
from headrace.model.codec.codec import decode_value, encode_key, encode_value
from headrace.model.declarations import Topic
from headrace.model.errors import ValueDoesNotFit
from headrace.model.kinds import Kind, List, Map, Record
from headrace.model.schema import Schema, schema_of
from tests.unit.model.shapes import SCHEMAS, rows, same

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Read = dict[str, Any] | str
"""A row, or the reason why it was refused."""


@pytest.fixture(scope="module", autouse=True)
def compiled_plans(spark: SparkSession) -> Iterator[None]:
    with compiled(spark):
        yield


# Hypothesis does not shrink examples, because each one costs a Spark job.
few_examples = settings(
    max_examples=2,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
    derandomize=True,
    database=None,
)


class Colour(StrEnum):
    RED = "red"
    BLUE = "blue"


@dataclass(frozen=True)
class Part:
    number: int
    name: str | None = None


@dataclass(frozen=True)
class Rich:
    text: str
    whole: int | None = None
    number: float | None = None
    truth: bool | None = None
    exact: Decimal | None = None
    fine: Annotated[Decimal, Digits(38, 20)] | None = None
    colour: Colour | None = None
    at: datetime | None = None
    day: date | None = None
    raw: bytes | None = None
    texts: list[str] | None = None
    exacts: list[Decimal | None] | None = None
    counts: dict[str, int] | None = None
    part: Part | None = None
    parts: list[Part] | None = None
    seven: int = 7
    tags: tuple[str, ...] = ("new",)


RICH = schema_of(Rich)


def read(
    spark: SparkSession, schema: Schema, values: Sequence[bytes | None], kind: str = "events"
) -> list[Read]:
    """Decode with the flow's decoder, and return the results in order. A null in a table becomes ``deletes``."""
    from pyspark.sql import functions as F

    from headrace.flow.codec.codec import Decoder, TimeBounds

    now = datetime(2026, 1, 31, 12, tzinfo=UTC)
    raw = spark.createDataFrame(
        [(b"k", value, 0, at, now) for at, value in enumerate(values)],
        "key binary, value binary, partition int, offset long, timestamp timestamp",
    )
    topic = Topic("t", schema, (), kind=kind)  # type: ignore[arg-type]
    columns = [F.col("row")[field.name].alias(f"f{at}") for at, field in enumerate(schema.fields)]
    decoded = Decoder(topic, TimeBounds()).decode(raw)
    fits = decoded.where("row is not null").select("offset", *columns).toArrow().to_pylist()
    found: dict[int, Read] = {
        row["offset"]: {
            field.name: _python(field.kind, row[f"f{at}"]) for at, field in enumerate(schema.fields)
        }
        for row in fits
    }
    rest = decoded.where("row is null").select("offset", "reason").toArrow().to_pylist()
    found |= {row["offset"]: row["reason"] or "deletes" for row in rest}
    assert len(found) == len(values) == len(fits) + len(rest)
    return [found[at] for at in range(len(values))]


def _python(kind: Kind, value: Any) -> Any:
    match kind:
        case _ if value is None:
            return None
        case List(of, _):
            return [_python(of, item) for item in value]
        case Map(of, _):
            return {name: _python(of, item) for name, item in value}
        case Record(fields):
            return {item.name: _python(item.kind, value[item.name]) for item in fields}
    return value


def python_row(schema: Schema, row: dict[str, Any]) -> dict[str, Any]:
    """Convert a row from Arrow's form to the form of the reference codec."""
    return {field.name: _python(field.kind, row[field.name]) for field in schema.fields}


def expect_reference_results(schema: Schema, values: Sequence[bytes], found: Sequence[Read]) -> None:
    for value, row in zip(values, found, strict=True):
        try:
            expected_row: Read = decode_value(schema, value)
        except ValueDoesNotFit as error:
            expected_row = str(error)
        both = f"{value[:300]!r}\n  reference: {expected_row}\n  Spark: {row}"
        if isinstance(expected_row, dict) and isinstance(row, dict):
            assert same(_sorted(expected_row), _sorted(row)), both
        else:
            assert isinstance(expected_row, str) == isinstance(row, str), both


def _sorted(value: Any) -> Any:
    """Sort the keys of maps, because their order is not defined."""
    if isinstance(value, dict):
        return {name: _sorted(value[name]) for name in sorted(value)}
    return [_sorted(item) for item in value] if isinstance(value, list) else value


@few_examples
@given(schema=SCHEMAS, data=st.data())
def test_any_value_of_any_schema_is_read_as_it_was_written(
    spark: SparkSession, schema: Schema, data: st.DataObject
) -> None:
    expected = data.draw(st.lists(rows(schema.fields), min_size=20, max_size=40))
    values = [encode_value(schema, row) for row in expected]
    found = read(spark, schema, values)
    expect_reference_results(schema, values, found)
    assert not any(isinstance(row, str) for row in found)


OTHER_VALUES = {
    "text": [
        "5",
        "true",
        "null",
        "{}",
        '["a"]',
        r'"\u0000"',
        r'"\ud83d\ude00"',
        r'"\ud800"',
        r'"\\ud800"',
        r'"\udc00\ud800"',
    ],
    "whole": ['"5"', "1.0", "1e2", str(2**63 - 1), str(2**63), "-0", "01", "true", "9" * 5_000, "NaN"],
    "number": [
        "1",
        "1e400",
        "1e-400",
        '"NaN"',
        '"Infinity"',
        '"-Infinity"',
        '"+INF"',
        '"1.5"',
        "NaN",
        "-0.0",
        *(f"0.{'7' * 998}", f"0.{'7' * 999}", f"{'7' * 200}.{'7' * 801}", f"-{'1' * 300}e-{'0' * 699}1"),
    ],
    "truth": ['"true"', "1", "null"],
    "exact": [
        *(
            "1",
            "1.5",
            '"1.5"',
            "1.1234567",
            "123456789012.123456",
            "1234567890123",
            "1e3",
            "1E-3",
            "-0",
            '"x"',
        ),
        *(
            '"1_0"',
            '" 1"',
            '"1e2"',
            '"+1"',
            '"0x1"',
            '"1,000"',
            "true",
            "1e100",
            '"NaN"',
            '"01"',
            '"1."',
            '".5"',
        ),
        *("0.00000000000000000001", "1.0000000000000000000004", "1.500000000", '""', "1.0000005", "1e-7"),
    ],
    "fine": [
        *("123456789012345678.12345678901234567890", "1234567890123456789", "1.123456789012345678901"),
        *('"1.5"', "1e3", "true", '""', "0.00000000000000000001", "1E-20", "1E-21"),
    ],
    "colour": ['"red"', '"green"', "1", '"RED"', '""'],
    "at": [
        *('"2026-01-31T12:00:00Z"', '"2026-01-31T12:00:00.5+02:00"', '"2026-01-31T12:00:00"', '"2026-01-31"'),
        *(
            '"2026-01-31 12:00:00Z"',
            "1700000000",
            '"1700000000"',
            '"2026-01-31T12:00:00.123456789Z"',
            '"epoch"',
        ),
        *(
            '"2026-02-30T12:00:00Z"',
            '"2026-01-31T24:00:00Z"',
            '"2026-01-31T12:00:60Z"',
            '"2026-01-31T12:00Z"',
        ),
        *('"2026-01-31T12:00:00 Europe/Berlin"', '"2026-01-31T12:00:00UTC"', '"now"', '"T12:00:00Z"'),
        *('"2026-01-31T12:00:00+18:00"', '"2026-01-31T12:00:00+18:01"', '"0000-01-01T00:00:00Z"', "true"),
        *('"9999-12-31T23:59:59.999999Z"', '"9999-12-31T23:59:59-01:00"', '"0001-01-01T00:00:00+01:00"'),
        *(
            '"2026-1-31T12:00:00Z"',
            '"+2026-01-31T12:00:00Z"',
            '"12026-01-31T12:00:00Z"',
            '" 2026-01-31T12:00:00Z"',
        ),
    ],
    "day": [
        '"2026-01-31"',
        '"2026-02-30"',
        '"2026-1-31"',
        '"2026-01-31T00:00:00Z"',
        "20000",
        '"2026"',
        '"0000-01-01"',
    ],
    "raw": ['"AQI="', '"AQI"', '""', '"!!"', r'"AQI=\n"', '"_-8="', '"AR=="', "5", r'"\/w=="'],
    "texts": ['["a"]', "[]", "[1]", '["a",1]', "[null]", '"a"', "{}", '[["a"]]', r'["\ud800"]'],
    "exacts": ['[1,null,"2.5"]', "[1.1234567]", '["x"]', "[true]", "[1e-7]"],
    "counts": [
        '{"a":1}',
        "{}",
        '{"a":"x"}',
        '{"a":null}',
        '{"a":1,"a":2}',
        "[]",
        '{"a":1.5}',
        '{"a":1,"b":2}',
    ],
    "part": [
        '{"number":1}',
        '{"number":1,"name":5}',
        "{}",
        '{"number":1,"number":2}',
        "[]",
        '"{}"',
        '{"number":null}',
    ],
    "parts": [
        '[{"number":1}]',
        '[{"number":1,"name":3}]',
        '[{"number":1,"number":2}]',
        "[null]",
        "[{}]",
        "[[]]",
    ],
    "seven": ["1", "null", '"x"'],
    "tags": ['["a","b"]', "null", "[1]"],
    "unknown": [
        '"x"',
        '{"a":[1,{"b":2}]}',
        '{"a":1,"a":2}',
        "NaN",
        "[" * 100_000 + "]" * 100_000,
        "[" * 199 + "]" * 199,
        *("[" * 200 + "]" * 200, "[[]," * 199 + "1" + "]" * 199, "9" * 5_000, '"\t"', r'"\x"'),
        *(
            f"0.{'7' * 998}",
            f"0.{'7' * 999}",
            f"[-{'7' * 1_000}]",
            f'"{"7" * 2_000}"',
            rf'["\"{"7" * 2_000}",1]',
        ),
    ],
}
OTHER_TEXTS = [
    *(
        b'{"text":"a"} x',
        b'{"text":"a"}{}',
        b'{"text":"a"}}',
        b'{"text":"a"}]',
        b'{"text":"a"},{}',
        b'{"text":"a"} ]}',
    ),
    *(b"", b" ", b"null", b"5", b"[]", b'[{"text":"a"}]', b'"x"', b"{}", b'{"text":"a",}', b"{'text':'a'}"),
    *(b'{"text":"a","text":"b"}', b'{"text":"a","whole":1,"text" \t:"b"}', b'{"text":"a","\\u0074ext":"b"}'),
    *(
        b'{"text":"\xed\xa0\x80"}',
        b'{"text":"\xff"}',
        b'{"text":"a\x00b"}',
        b'\xef\xbb\xbf{"text":"a"}',
        b'{text:"a"}',
    ),
    *(b' {"text" : "a" ,\n "whole" : 3 } \n', b'/**/{"text":"a"}', '{"text":"a"}'.encode("utf-16")),
    b'{"text":"a","counts":{' + b",".join(b'"k%d":1' % at for at in range(300)) + b"}}",
]


def test_spark_accepts_and_refuses_the_same_values_as_the_reference_codec(
    spark: SparkSession,
) -> None:
    values = [
        f'{{"text":"a","{name}":{other}}}'.replace('"text":"a","text"', '"text"').encode()
        for name, others in OTHER_VALUES.items()
        for other in others
    ]
    values += OTHER_TEXTS
    found = read(spark, RICH, values)
    expect_reference_results(RICH, values, found)
    reasons = [row for row in found if isinstance(row, str)]
    assert 100 < len(reasons) < len(values) - 50
    assert "exact: expected an exact number with up to 12 digits before the point and 6 after it" in str(
        reasons
    )


def test_spark_decodes_mutated_texts_as_the_reference_codec_does(spark: SparkSession) -> None:
    random_ = random.Random(5)
    written = [{"text": "a", "seven": 7, "tags": ["x"]}, *some_rows()]
    values = [_tampered(random_, encode_value(RICH, random_.choice(written))) for _ in range(1_500)]
    found = read(spark, RICH, values)
    expect_reference_results(RICH, values, found)
    assert sum(isinstance(row, dict) for row in found) > 100


def some_rows() -> list[dict[str, Any]]:
    part = {"number": 1, "name": "n"}
    whole: dict[str, Any] = {
        "text": 'é"\\\0{', "whole": -(2**63), "number": 1.5e-7, "truth": True, "exact": Decimal("-1.500000"),
        "fine": Decimal("0.00000000000000000001"), "colour": "red", "at": datetime(2026, 1, 31, 12, tzinfo=UTC),
        "day": date(2026, 1, 31), "raw": b"\0\xff", "texts": ["a", ""], "exacts": [Decimal("1.000000"), None],
        "counts": {"a": 1, "b": 2}, "part": part, "parts": [part, part], "seven": 8, "tags": ["x", "y"],
    }  # fmt: skip
    return [whole, {"text": "plain", "seven": 7, "tags": [], "at": datetime(1999, 1, 1, tzinfo=UTC)}]


def _tampered(random_: random.Random, value: bytes) -> bytes:
    text = value.decode()
    for _ in range(random_.choice([0, 1, 1, 2])):
        at = random_.randrange(len(text))
        match random_.randrange(5):
            case 0:
                text = text[:at] + random_.choice(list('{}[]":,0 \\ne1.-')) + text[at:]
            case 1:
                text = text[:at] + text[at + 1 :]
            case 2:
                text = text[:at] + text[at : at + 12] + text[at:]
            case 3:
                text = json.dumps(json.loads(value), indent=random_.choice([None, 1]))
            case 4:
                parts = text.split(",")
                random_.shuffle(parts)
                text = ",".join(parts)
        if not text:
            return b"{}"
    return text.encode()


def test_a_null_deletes_from_a_table_and_is_not_an_event(spark: SparkSession) -> None:
    assert read(spark, RICH, [None], "table") == ["deletes"]
    assert read(spark, RICH, [None]) == ["the value is null, and only a table has null values"]


def test_events_from_before_a_field_existed_have_its_default(spark: SparkSession) -> None:
    (row,) = read(spark, RICH, [b'{"text":"old"}'])
    assert isinstance(row, dict)
    assert (row["seven"], row["tags"], row["whole"]) == (7, ["new"], None)


KEYS = [("text",), ("whole",), ("exact",), ("fine",), ("at",), ("day",), ("truth",), ("colour",)]
KEYS += [("text", "whole"), ("at", "exact", "fine", "truth", "day", "colour")]


def test_spark_encodes_values_and_keys_as_the_reference_codec_does(spark: SparkSession) -> None:
    from headrace.flow.codec.codec import encode, value_encoder
    from headrace.flow.spark_types import struct_of

    whole = some_rows()[0]
    small = {
        **whole,
        "text": "",
        "exact": Decimal("0.000000"),
        "fine": Decimal("0e-20"),
        "number": float("nan"),
    }
    large = {
        **whole,
        "whole": 2**63 - 1,
        "fine": Decimal("123456789012345678.12345678901234567890"),
        "number": 1e300,
    }
    sparse = {**whole, **dict.fromkeys(("exacts", "parts", "number", "raw"))}
    expected = [whole, small, large, {**sparse, "at": datetime(1, 1, 1, tzinfo=UTC), "day": date(1, 1, 1)}]
    expected += [
        {**sparse, "at": datetime(9999, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC), "texts": [], "counts": {}}
    ]
    frame = spark.createDataFrame([tuple(row.values()) for row in expected], struct_of(RICH.fields))
    keys = [value_encoder(RICH).key(key).alias(f"k{at}") for at, key in enumerate(KEYS)]
    values = [row["value"].encode() for row in encode(frame, RICH, ("text",)).collect()]
    written = frame.select(*keys).collect()
    for row, value, texts in zip(expected, values, written, strict=True):
        assert same(_sorted(decode_value(RICH, value)), _sorted(row)), value
        assert b"E-" not in value.replace(b"1.5E-7", b"")
        for at, key in enumerate(KEYS):
            topic = Topic("t", RICH, key)
            assert texts[f"k{at}"].encode() == encode_key(topic, row)
