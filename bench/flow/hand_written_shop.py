"""The shop's derivations as a hand-written script, topic to topic.

    python -m bench.flow.hand_written_shop BOOTSTRAP CHECKPOINTS [all]

The script joins each order with its product, as the product was when the script started. With ``all``, it also derives
the counts and sums of orders and clicks. From Headrace it takes only the jars of Spark's Kafka connector, so that it
does not download them. It runs until it is killed.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from headrace.flow.spark import jars, java

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["main"]

_ORDER = "order_id string, customer_id string, product_id string, quantity bigint, at timestamp, note string"
_PRODUCT = "product_id string, name string, category string, price decimal(38,2)"
_CLICK = "click_id string, session_id string, product_id string, at timestamp"
_SALE = "order_id string, product_id string, quantity bigint, amount decimal(20,2), at timestamp"
_LATE = "30 seconds"


def main() -> None:
    bootstrap, checkpoints, *derive_all = sys.argv[1:]
    connector = ",".join(map(str, jars.provide(java.require().path, folder=None, say=lambda line: None)))
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"

    from pyspark.sql import SparkSession
    from pyspark.sql import functions as F

    spark = (
        SparkSession.builder.master("local[*]")
        .config("spark.jars", connector)
        .config("spark.ui.enabled", "false")
        .config("spark.driver.memory", "1g")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.shuffle.partitions", str(len(os.sched_getaffinity(0))))
        .getOrCreate()
    )
    kafka = {"kafka.bootstrap.servers": bootstrap, "startingOffsets": "earliest"}
    value = F.col("value").cast("string")

    def stream(topic: str, schema: str) -> DataFrame:
        records = spark.readStream.format("kafka").options(**kafka, subscribe=topic).load()
        return records.select(F.from_json(value, schema).alias("row")).select("row.*")

    def start(rows: DataFrame, topic: str, keys: list[str], mode: str = "update") -> None:
        output = rows.select(
            F.to_json(F.struct(*keys)).alias("key"), F.to_json(F.struct(*rows.columns)).alias("value")
        )
        sink = output.writeStream.format("kafka").options(**kafka, topic=topic).outputMode(mode)
        sink.option("checkpointLocation", f"{checkpoints}/{topic}").start()

    products = spark.read.format("kafka").options(**kafka, subscribe="products").load()
    known_products = products.select(F.from_json(value, _PRODUCT).alias("product")).select("product.*")
    sales_rows = (
        stream("orders", _ORDER)
        .join(known_products, "product_id", "left")
        .withColumn("amount", F.expr("CAST(quantity * price AS decimal(20,2))"))
    )
    start(sales_rows, "sales", ["order_id"], "append")
    if derive_all:
        sales, clicks = stream("sales", _SALE), stream("clicks", _CLICK)
        minute = F.window("at", "1 minute")
        revenue = sales.withWatermark("at", _LATE).groupBy("product_id", minute)
        start(revenue.agg(F.sum("amount"), F.count(F.lit(1))), "revenue", ["product_id", "window"])
        ranking = sales.groupBy("product_id").agg(F.sum("amount"), F.sum("quantity"))
        start(ranking, "ranking", ["product_id"])
        interest = clicks.withWatermark("at", _LATE).groupBy("product_id", minute).count()
        start(interest, "interest", ["product_id", "window"])
    spark.streams.awaitAnyTermination()


if __name__ == "__main__":
    main()
