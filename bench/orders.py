"""What flows are measured on: a shop's orders, and derivations of them, declared as a user would.

kept            stateless: large orders, with their price
kept_now        the same, in real time
per_minute      stateful: orders and pieces per product and minute
per_key         stateful for ever: how often each key came, of which an order may bring many
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
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
    "keys_event",
    "many_of",
    "produce",
    "product_of",
    "quantity_of",
]

LATE = timedelta(seconds=30)
PRODUCTS = 1_000
_PER_S = 1_000
"""Orders that share a second of event time."""
_VALUE = b'{"order_id":"%s","customer_id":"c%04d","product_id":"%s","quantity":%d,"at":"%s","note":null}'
_FILL_S = 300.0
_SCATTER, _SCATTERED = 2_654_435_761, 2**32
"""Numbers one after the other become keys that lie far apart, and no two become the same."""


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


def per_key(orders: DataFrame) -> DataFrame:
    """An order brings ``quantity`` keys, from the number that is its product on."""
    steps = F.explode(F.sequence(F.lit(0), F.col("quantity") - 1)).alias("step")
    stepped = orders.select("product_id", "quantity", steps)
    number = (F.col("product_id").cast("long") + F.col("step")) * _SCATTER
    keyed = stepped.withColumn("key_id", F.pmod(number, F.lit(_SCATTERED)))
    return keyed.groupBy("key_id").agg(F.count(F.lit(1)).alias("times"), F.sum("quantity").alias("pieces"))


FLOWS = {"kept": kept, "kept_now": kept, "per_minute": per_minute, "per_key": per_key}
_KEYS = {
    "kept": ["order_id"],
    "kept_now": ["order_id"],
    "per_minute": ["product_id", "minute"],
    "per_key": ["key_id"],
}
REALTIME = "kept_now"


def app_of(query: str, topic: str, output: str) -> tuple[App, Flow]:
    """An app with one flow and a view of it, from ``topic`` to ``output``."""
    app = App(f"bench-{output}")
    orders = app.topic(topic, Order, key="order_id", time="at", late=LATE)
    made = app.topic(output, key=_KEYS[query])
    latency: Latency = "realtime" if query == REALTIME else "batch"
    flow = app.flow(
        reads=[orders],
        writes=made,
        name=f"{output}-flow",
        latency=latency,
        unbounded=query == "per_key",
    )(FLOWS[query])
    app.view("seen", made, store=SQLite())
    return app, flow


def many_of(query: str, topic: str, output: str, count: int) -> App:
    """An app with as many flows of one topic, no two of which compute the same."""
    app = App(f"bench-{output}")
    orders = app.topic(topic, Order, key="order_id", time="at", late=LATE)
    for number in range(count):
        made = app.topic(f"{output}-{number}", key=_KEYS[query])
        app.flow(reads=[orders], writes=made, name=f"{output}-{number}-flow")(_another(query, number))
    return app


def _another(query: str, number: int) -> Callable[[DataFrame], DataFrame]:
    function = FLOWS[query]

    def derive(orders: DataFrame) -> DataFrame:
        return function(orders.where(F.col("quantity") != -1 - number))

    return derive


def event(number: int, at: datetime) -> tuple[bytes, bytes]:
    """The record of an order: key and value."""
    key = key_of(number).encode()
    when = at.strftime("%Y-%m-%dT%H:%M:%S.%fZ").encode()
    rest = (key, number * 7919 % 10_000, product_of(number).encode(), quantity_of(number), when)
    return key, _VALUE % rest


def keys_event(number: int, first: int, count: int, at: datetime) -> tuple[bytes, bytes]:
    """The record of an order for ``per_key``."""
    key = key_of(number).encode()
    when = at.strftime("%Y-%m-%dT%H:%M:%S.%fZ").encode()
    return key, _VALUE % (key, 0, b"%d" % first, count, when)


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
    produce(cluster, topic, _events(count), partitions)


def produce(cluster: Cluster, topic: str, events: Iterable[tuple[bytes, bytes]], partitions: int) -> None:
    """One to each partition in turn, so that all partitions are at the same point of the whole."""
    cluster.ensure_topic(topic, partitions)
    producer = cluster.producer(
        {"linger.ms": 20, "compression.type": "lz4", "queue.buffering.max.messages": 200_000}
    )
    refused: list[str] = []

    def note(error: KafkaError | None, _: Message) -> None:
        if error is not None:
            refused.append(str(error))

    count = 0
    for key, value in events:
        while True:
            try:
                producer.produce(topic, value, key, partition=count % partitions, on_delivery=note)
                break
            except BufferError:
                producer.poll(0.05)
        count += 1
    left = producer.flush(_FILL_S)
    if refused or left:
        raise SystemExit(
            f"{len(refused)} of {count} orders were refused ({refused[:1]}), {left} not answered"
        )
