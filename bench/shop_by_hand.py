"""The shop's first derivation as a script that somebody wrote by hand: orders, each with its product, topic to topic.

    python -m bench.shop_by_hand BOOTSTRAP CHECKPOINT

Needs nothing of ours but the connector's jars, which would otherwise be fetched. It runs until it is ended.
"""

from __future__ import annotations

import os
import sys

from headrace.flow import jars, java

__all__ = ["main"]

_ORDER = "order_id string, customer_id string, product_id string, quantity bigint, at timestamp, note string"
_PRODUCT = "product_id string, name string, category string, price decimal(38,2)"


def main() -> None:
    bootstrap, checkpoint = sys.argv[1:]
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
    products = spark.read.format("kafka").options(**kafka, subscribe="products").load()
    orders = spark.readStream.format("kafka").options(**kafka, subscribe="orders").load()
    known = products.select(F.from_json(value, _PRODUCT).alias("product")).select("product.*")
    sales = (
        orders.select(F.from_json(value, _ORDER).alias("order"))
        .select("order.*")
        .join(known, "product_id", "left")
        .withColumn("amount", F.expr("CAST(quantity * price AS decimal(20,2))"))
        .select(F.col("order_id").alias("key"), F.to_json(F.struct("*")).alias("value"))
    )
    sink = (
        sales.writeStream.format("kafka")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("topic", "sales")
    )
    sink.option("checkpointLocation", checkpoint).start().awaitTermination()


if __name__ == "__main__":
    main()
