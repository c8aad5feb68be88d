"""What it costs Spark to read the values of a topic: JSON as flows do it, JSON by from_json, Avro by from_avro.

The same orders are written to two topics by the same sink, and each is read from the log and decoded, several times
over, with nothing behind it. Reading alone is measured as well, so that it can be taken off. The two formats must give
the same rows.
"""

from __future__ import annotations

import json
import os
from collections import defaultdict
from pathlib import Path

import msgspec
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.avro.functions import from_avro, to_avro

from bench.by_hand import PRODUCER
from bench.orders import LATE, Order
from bench.process_tree import cpu_s
from headrace import App
from headrace.client.cluster import Cluster
from headrace.flow.decoding import Decoder, TimeBounds
from headrace.flow.inputs import client_options, history

__all__ = ["RESULT", "Decoded", "avro_topic", "compare", "json_topic"]

RESULT = "decoded.json"
_FIELDS = ("order_id", "customer_id", "product_id", "quantity", "at", "note")
_ORDER = "order_id string, customer_id string, product_id string, quantity bigint, at timestamp, note string"
_AVRO = json.dumps(
    {
        "type": "record",
        "name": "Order",
        "fields": [
            {"name": "order_id", "type": "string"},
            {"name": "customer_id", "type": "string"},
            {"name": "product_id", "type": "string"},
            {"name": "quantity", "type": "long"},
            {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
            {"name": "note", "type": ["null", "string"], "default": None},
        ],
    }
)
_WARM, _ROUNDS = 3, 3


class Decoded(msgspec.Struct):
    cpu_s: dict[str, list[float]]
    """Per million values, by plan, round by round."""
    json_bytes: int
    avro_bytes: int
    """Of all values."""
    values: int


def json_topic(topic: str) -> str:
    return f"{topic}-json"


def avro_topic(topic: str) -> str:
    return f"{topic}-avro"


def compare(spark: SparkSession, cluster: Cluster, topic: str, data: Path, partitions: int) -> None:
    app = App("bench-formats")
    decoder = Decoder(app.topic(topic, Order, key="order_id", time="at", late=LATE), TimeBounds())
    read = _read(spark, cluster, topic)
    fits = decoder.decode(read).where("reason IS NULL")
    avro = fits.select("key", to_avro(F.col("row"), _AVRO).alias("value"))
    for rows, to in ((read.select("key", "value"), json_topic(topic)), (avro, avro_topic(topic))):
        cluster.ensure_topic(to, partitions)
        sink = rows.write.format("kafka").options(**client_options(cluster), **PRODUCER)
        sink.option("topic", to).save()
    as_json, as_avro = (_read(spark, cluster, to) for to in (json_topic(topic), avro_topic(topic)))
    parsed = F.from_json(F.col("value").cast("string"), _ORDER, {"timeZone": "UTC"}).alias("row")
    plans = {
        "read JSON": as_json.select("key", "value"),
        "read Avro": as_avro.select("key", "value"),
        "strict": decoder.decode(as_json).select("row.*", "event_us", "reason"),
        "from_json": as_json.select(parsed).select("row.*"),
        "from_avro": as_avro.select(from_avro(F.col("value"), _AVRO).alias("row")).select("row.*"),
    }
    digests = {name: _digest(plans[name]) for name in ("strict", "from_json", "from_avro")}
    if len(set(digests.values())) != 1:
        raise SystemExit(f"the formats have given different rows: {digests}")
    spent: dict[str, list[float]] = defaultdict(list)
    values, _ = digests["strict"]
    for number in range(_WARM + _ROUNDS):
        for name, plan in plans.items():
            before = cpu_s(os.getpid())
            plan.write.format("noop").mode("overwrite").save()
            if number >= _WARM:
                spent[name].append((cpu_s(os.getpid()) - before) * 1e6 / values)
    found = Decoded(dict(spent), _bytes(as_json), _bytes(as_avro), values)
    fresh = data / f".{RESULT}"
    fresh.write_bytes(msgspec.json.encode(found))
    fresh.replace(data / RESULT)


def _read(spark: SparkSession, cluster: Cluster, topic: str) -> DataFrame:
    ends = cluster.ends(topic)
    return history(spark, cluster, topic, {str(number): (0, end) for number, end in ends.items()})


def _digest(rows: DataFrame) -> tuple[int, int]:
    told = rows.agg(F.count(F.lit(1)), F.bit_xor(F.xxhash64(*_FIELDS))).first()
    assert told is not None
    return int(told[0]), int(told[1])


def _bytes(raw: DataFrame) -> int:
    told = raw.agg(F.sum(F.octet_length("value"))).first()
    assert told is not None
    return int(told[0])
