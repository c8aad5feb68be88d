"""The derivations of ``bench.flow.orders``, written by hand in Structured Streaming, from topic to topic, with Spark's
own Kafka sink and a tuned producer.

The hand-written query writes the same bytes for the same orders. It is at-least-once and does not check its input: an
invalid value becomes nulls, and a late row is dropped silently.
"""

from __future__ import annotations

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from bench.flow.orders import LATE

__all__ = ["PRODUCER", "start_by_hand"]

_ORDER = "order_id string, customer_id string, product_id string, quantity bigint, at timestamp, note string"
_FORMAT = {
    "ignoreNullFields": "false",
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
    "timeZone": "UTC",
}
PRODUCER = {
    "kafka.compression.type": "lz4",
    "kafka.linger.ms": "5",
    "kafka.batch.size": "1000000",
    "kafka.buffer.memory": "134217728",
}


def start_by_hand(
    spark: SparkSession,
    query: str,
    bootstrap: str,
    topic: str,
    output: str,
    checkpoint: str,
    batch_events: int,
) -> StreamingQuery:
    records = (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("subscribe", topic)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", str(batch_events))
        .load()
    )
    order = F.from_json(F.col("value").cast("string"), _ORDER, {"timeZone": "UTC"})
    orders = records.select(order.alias("order")).select("order.*")
    rows, mode = (
        (_large_orders(orders), "append") if query == "large_orders" else (_per_minute(orders), "update")
    )
    sink = rows.writeStream.format("kafka").option("kafka.bootstrap.servers", bootstrap).options(**PRODUCER)
    return (
        sink.option("topic", output)
        .option("checkpointLocation", checkpoint)
        .outputMode(mode)
        .trigger(processingTime="0 seconds")
        .start()
    )


def _large_orders(orders: DataFrame) -> DataFrame:
    rows = orders.where("quantity > 1").selectExpr(
        "order_id", "product_id", "quantity", "quantity * 1999 AS cents", "at"
    )
    return rows.select(F.col("order_id").alias("key"), F.to_json(F.struct("*"), _FORMAT).alias("value"))


def _per_minute(orders: DataFrame) -> DataFrame:
    counted = (
        orders.withWatermark("at", f"{LATE.total_seconds():.0f} seconds")
        .groupBy("product_id", F.window("at", "1 minute").alias("window"))
        .agg(F.count(F.lit(1)).alias("orders"), F.sum("quantity").alias("pieces"))
    )
    rows = counted.selectExpr("product_id", "window.start AS minute", "orders", "pieces")
    return rows.select(
        F.to_json(F.struct("product_id", "minute"), _FORMAT).alias("key"),
        F.to_json(F.struct("*"), _FORMAT).alias("value"),
    )
