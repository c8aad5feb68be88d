"""The CPU time that Spark needs to decode the values of a topic: strict JSON as in flows, JSON with from_json, Avro
with from_avro.

The same sink writes the same orders to two topics, as JSON and as Avro. Each topic is read from the log and decoded
several times, without further work. Reading without decoding is measured too, so that it can be subtracted. Both
formats must give the same rows.
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

from bench.flow.hand_written import PRODUCER
from bench.flow.orders import LATE, Order
from faults.servers.process_tree import cpu_s
from headrace import App
from headrace.client.cluster import Cluster
from headrace.flow.codec.codec import Decoder, TimeBounds
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
_WARM_UP_ROUNDS, _ROUNDS = 3, 3


class Decoded(msgspec.Struct):
    cpu_s: dict[str, list[float]]
    """For each plan (a format, and its decoder if any), the CPU seconds per million values in each round."""
    json_bytes: int
    """Bytes of all values as JSON."""
    avro_bytes: int
    values: int


def json_topic(topic: str) -> str:
    return f"{topic}-json"


def avro_topic(topic: str) -> str:
    return f"{topic}-avro"


def compare(spark: SparkSession, cluster: Cluster, topic: str, data: Path, partitions: int) -> None:
    app = App("bench-formats")
    decoder = Decoder(app.topic(topic, Order, key="order_id", time="at", late=LATE), TimeBounds())
    read = _read(spark, cluster, topic)
    valid = decoder.decode(read).where("reason IS NULL")
    avro = valid.select("key", to_avro(F.col("row"), _AVRO).alias("value"))
    for rows, target in ((read.select("key", "value"), json_topic(topic)), (avro, avro_topic(topic))):
        cluster.ensure_topic(target, partitions)
        sink = rows.write.format("kafka").options(**client_options(cluster), **PRODUCER)
        sink.option("topic", target).save()
    json_records, avro_records = (
        _read(spark, cluster, name) for name in (json_topic(topic), avro_topic(topic))
    )
    parsed = F.from_json(F.col("value").cast("string"), _ORDER, {"timeZone": "UTC"}).alias("row")
    plans = {
        "read JSON": json_records.select("key", "value"),
        "read Avro": avro_records.select("key", "value"),
        "strict": decoder.decode(json_records).select("row.*", "event_us", "reason"),
        "from_json": json_records.select(parsed).select("row.*"),
        "from_avro": avro_records.select(from_avro(F.col("value"), _AVRO).alias("row")).select("row.*"),
    }
    digests = {name: _digest(plans[name]) for name in ("strict", "from_json", "from_avro")}
    if len(set(digests.values())) != 1:
        raise SystemExit(f"the formats decoded different rows: {digests}")
    cpu_s_by_plan: dict[str, list[float]] = defaultdict(list)
    values, _ = digests["strict"]
    for number in range(_WARM_UP_ROUNDS + _ROUNDS):
        for name, plan in plans.items():
            before = cpu_s(os.getpid())
            plan.write.format("noop").mode("overwrite").save()
            if number >= _WARM_UP_ROUNDS:
                cpu_s_by_plan[name].append((cpu_s(os.getpid()) - before) * 1e6 / values)
    decoded = Decoded(dict(cpu_s_by_plan), _bytes(json_records), _bytes(avro_records), values)
    temporary = data / f".{RESULT}"
    temporary.write_bytes(msgspec.json.encode(decoded))
    temporary.replace(data / RESULT)


def _read(spark: SparkSession, cluster: Cluster, topic: str) -> DataFrame:
    ends = cluster.ends(topic)
    return history(spark, cluster, topic, {str(number): (0, end) for number, end in ends.items()})


def _digest(rows: DataFrame) -> tuple[int, int]:
    result = rows.agg(F.count(F.lit(1)), F.bit_xor(F.xxhash64(*_FIELDS))).first()
    assert result is not None
    return int(result[0]), int(result[1])


def _bytes(raw: DataFrame) -> int:
    result = raw.agg(F.sum(F.octet_length("value"))).first()
    assert result is not None
    return int(result[0])
