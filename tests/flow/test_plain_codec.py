"""The codec that verify uses in Spark's Python workers, compared with ``headrace.model.codec``."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F

from headrace.flow.history.plain_decoder import plain_decode
from headrace.flow.history.plain_encoder import normalize_values, plain_encode
from headrace.flow.history.progress_check import Lookup
from headrace.flow.spark_types import parsed_struct, struct_of
from headrace.model.codec.codec import encode_key, encode_value
from headrace.model.declarations import Topic
from headrace.model.schema import Schema, schema_of
from tests.flow.test_values import (
    KEYS,
    OTHER_TEXTS,
    OTHER_VALUES,
    RICH,
    expect_reference_results,
    python_row,
    some_rows,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

HOUR_US = 3_600_000_000
NOW = datetime(2026, 1, 31, 12, tzinfo=UTC)
RAW = "key binary, value binary, partition int, offset long, timestamp timestamp"


def records(spark: SparkSession, values: Sequence[bytes | None]) -> DataFrame:
    return spark.createDataFrame([(b"k", value, 0, at, NOW) for at, value in enumerate(values)], RAW)


def test_plain_decode_returns_the_same_values_as_the_reference_codec(
    spark: SparkSession,
) -> None:
    values = [
        f'{{"text":"a","{name}":{other}}}'.replace('"text":"a","text"', '"text"').encode()
        for name, others in OTHER_VALUES.items()
        for other in others
    ]
    values += [*OTHER_TEXTS, *(encode_value(RICH, row) for row in some_rows())]
    decoded = plain_decode(records(spark, values), Topic("t", RICH, ()), HOUR_US, extra_columns=("key",))
    assert decoded.schema["row"].dataType == parsed_struct(RICH.fields)
    found = sorted(decoded.toArrow().to_pylist(), key=lambda decoded_row: decoded_row["offset"])
    rows = [decoded_row["reason"] or python_row(RICH, decoded_row["row"]) for decoded_row in found]
    expect_reference_results(RICH, values, rows)
    assert {decoded_row["key"] for decoded_row in found} == {b"k"}
    assert all((decoded_row["row"] is None) == (decoded_row["reason"] is not None) for decoded_row in found)


@dataclass(frozen=True)
class Event:
    name: str
    at: datetime


def test_each_record_gets_its_batch_and_an_implausible_time_is_a_dead_letter(spark: SparkSession) -> None:
    schema = schema_of(Event)
    ahead, year = NOW + timedelta(hours=1), datetime(1971, 1, 1, tzinfo=UTC)
    microsecond = timedelta(microseconds=1)
    times = [NOW, ahead, ahead + microsecond, year - microsecond, year]
    values = [encode_value(schema, Event("e", at)) for at in times]
    topic = Topic("t", schema, ("name",), "at")
    lookup = Lookup(array("q", [3, 4, 9]), {0: array("q", [1, 4, 6])})
    decoded = plain_decode(records(spark, [*values, None]), topic, HOUR_US, batches=lookup)
    found = decoded.orderBy("offset").select("batch", "event_us", "reason").collect()
    assert [row["batch"] for row in found] == [3, 4, 4, 4, 9, 9]
    assert [row["reason"] for row in found] == [
        None,
        None,
        "at is too far ahead of the log's timestamp of the record",
        "at is before 1971",
        None,
        "the value is null, and only a table has null values",
    ]
    assert [row["event_us"] is None for row in found] == [False, False, True, True, False, True]
    assert found[0]["event_us"] == NOW.timestamp() * 1_000_000
    deleted = plain_decode(records(spark, [None]), Topic("t", schema, (), kind="table"), HOUR_US).collect()
    assert [(row["row"], row["reason"]) for row in deleted] == [(None, None)]


def test_plain_encode_writes_the_same_bytes_as_the_reference_codec(spark: SparkSession) -> None:
    whole = some_rows()[0]
    sparse = {**whole, **dict.fromkeys(("exacts", "parts", "number", "raw", "part", "counts"))}
    rows: list[dict[str, Any]] = [
        whole,
        {**whole, "number": 1e300, "fine": Decimal("0e-20"), "texts": []},
        {**sparse, "at": datetime(9999, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC), "day": date(1, 1, 1)},
    ]
    frame = spark.createDataFrame([tuple(row.values()) for row in rows], struct_of(RICH.fields))
    numbered = frame.withColumn("_number", F.length("text").cast("long"))
    for key in (("text",), KEYS[-1]):
        written = plain_encode(numbered, RICH, key, ["_number"]).collect()
        for row, record in zip(rows, written, strict=True):
            assert record["value"].encode() == encode_value(RICH, row)
            assert record["key"].encode() == encode_key(Topic("t", RICH, key), row)
            assert record["_number"] == len(row["text"])


def test_types_that_only_spark_has_are_encoded_as_flows_encode_them(spark: SparkSession) -> None:
    """These are 32-bit floats, times without a zone, and nulls that the schema does not allow."""
    from headrace.flow.codec.codec import encode
    from headrace.flow.spark_types import schema_of_output

    frame = spark.sql(
        "SELECT 'a' AS id, CAST(0.1 AS FLOAT) AS small, ARRAY(CAST(1234.5 AS FLOAT), NULL) AS smalls,"
        " TIMESTAMP_NTZ'2026-01-31 12:00:00.5' AS at, MAP('k', NAMED_STRUCT('at', TIMESTAMP_NTZ'2026-01-31 12:00:00'))"
        " AS parts, CAST(NULL AS INT) AS whole, false AS _deleted"
        " UNION ALL SELECT NULL, 1F, ARRAY(), NULL, NULL, 7, NULL UNION ALL SELECT 'b', 1F, NULL, NULL, NULL, 1, true"
    )
    shape = frame.drop("_deleted").schema
    strict = schema_of_output(shape, name="f", key=("id",), location=None)
    fields = tuple(type(field)(field.name, field.kind, False) for field in strict.fields)
    schema = Schema("f", fields)
    plain = plain_encode(frame, schema, ("id",)).collect()
    assert plain == encode(frame, schema, ("id",)).collect()
    assert [(row["key"], row["value"] is None) for row in plain] == [("a", False), (None, False), ("b", True)]
    assert '"small":0.1,' in plain[0]["value"]


def test_a_value_is_normalized_unless_that_would_alter_it(spark: SparkSession) -> None:
    unchanged = ['{"text":"a","other":1}', "no json", '{"text":"a"}', None]
    row = {"text": "a\x1f", "number": 1e10, "seven": 7, "tags": ["x"]}
    normal = encode_value(RICH, row).decode()
    other = normal.replace("10000000000.0", "1.0E10").replace("\\u001f", "\\u001F")
    assert other != normal
    frame = spark.createDataFrame([("k", value) for value in (other, *unchanged)], "key string, value string")
    assert [result["value"] for result in normalize_values(frame, RICH).collect()] == [normal, *unchanged]
