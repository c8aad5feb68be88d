"""What flows are measured on: a shop's orders, and two derivations of them, declared as a user would.

kept            stateless: large orders, with their price
kept_now        the same, in real time
per_minute      stateful: orders and pieces per product and minute
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from confluent_kafka import KafkaError, Message
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from headrace import App
from headrace.client.cluster import Cluster
from headrace.model.flow import Flow, Latency
from headrace.stores import SQLite

__all__ = [
    "FLOWS",
    "LATE",
    "REALTIME",
    "Order",
    "app_of",
    "event",
    "fill",
    "key_of",
    "product_of",
    "quantity_of",
]

LATE = timedelta(seconds=30)
PRODUCTS = 1_000
_PER_S = 1_000
"""Orders that share a second of event time."""
_VALUE = b'{"order_id":"%s","customer_id":"c%04d","product_id":"%s","quantity":%d,"at":"%s","note":null}'
_FILL_S = 300.0


@dataclass(frozen=True)
class Order:
    order_id: str
    customer_id: str
    product_id: str
    quantity: int
    at: datetime
    note: str | None = None


def kept(orders: DataFrame) -> DataFrame:
    large = orders.where(F.col("quantity") > 1)
    return large.withColumn("cents", F.col("quantity") * 1999).select(
        "order_id", "product_id", "quantity", "cents", "at"
    )


def per_minute(orders: DataFrame) -> DataFrame:
    grouped = orders.groupBy("product_id", F.window("at", "1 minute").alias("window"))
    counted = grouped.agg(F.count(F.lit(1)).alias("orders"), F.sum("quantity").alias("pieces"))
    return counted.select("product_id", F.col("window.start").alias("minute"), "orders", "pieces")


FLOWS = {"kept": kept, "kept_now": kept, "per_minute": per_minute}
_KEYS = {"kept": ["order_id"], "kept_now": ["order_id"], "per_minute": ["product_id", "minute"]}
REALTIME = "kept_now"


def app_of(query: str, topic: str, output: str) -> tuple[App, Flow]:
    """An app with one flow and a view of it, from ``topic`` to ``output``."""
    app = App(f"bench-{output}")
    orders = app.topic(topic, Order, key="order_id", time="at", late=LATE)
    made = app.topic(output, key=_KEYS[query])
    latency: Latency = "realtime" if query == REALTIME else "batch"
    flow = app.flow(reads=[orders], writes=made, name=f"{output}-flow", latency=latency)(FLOWS[query])
    app.view("seen", made, store=SQLite())
    return app, flow


def event(number: int, at: datetime) -> tuple[bytes, bytes]:
    """The record of an order: key and value."""
    key = key_of(number).encode()
    when = at.strftime("%Y-%m-%dT%H:%M:%S.%fZ").encode()
    rest = (key, number * 7919 % 10_000, product_of(number).encode(), quantity_of(number), when)
    return key, _VALUE % rest


def key_of(number: int) -> str:
    return f"o{number:09}"


def product_of(number: int) -> str:
    return f"p{number * 104_729 % PRODUCTS:03}"


def quantity_of(number: int) -> int:
    return number % 4 + 1


def _events(count: int) -> Iterator[tuple[bytes, bytes]]:
    """In the order of their times, of which none is ahead of now."""
    began = datetime.now(UTC) - timedelta(seconds=count / _PER_S + 60)
    for number in range(count):
        yield event(number, began + timedelta(microseconds=number * 1_000_000 // _PER_S))


def fill(cluster: Cluster, topic: str, count: int, partitions: int) -> None:
    """A new topic with as many orders, spread evenly."""
    cluster.ensure_topic(topic, partitions)
    producer = cluster.producer(
        {"linger.ms": 20, "compression.type": "lz4", "queue.buffering.max.messages": 200_000}
    )
    refused: list[str] = []

    def note(error: KafkaError | None, _: Message) -> None:
        if error is not None:
            refused.append(str(error))

    for number, (key, value) in enumerate(_events(count)):
        while True:
            try:
                producer.produce(topic, value, key, partition=number % partitions, on_delivery=note)
                break
            except BufferError:
                producer.poll(0.05)
    left = producer.flush(_FILL_S)
    if refused or left:
        raise SystemExit(
            f"{len(refused)} of {count} orders were refused ({refused[:1]}), {left} not answered"
        )
