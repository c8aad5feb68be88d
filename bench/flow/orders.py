"""The input of the flow benchmarks: a shop's orders, and derivations of them, declared as a user would declare them.

large_orders        stateless: large orders, with their price
large_orders_now    the same, in real time
per_minute          stateful: orders and pieces per product and minute
per_key             unbounded state: how often each key occurred; an order can have many keys
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
from headrace.model.declarations import Flow, Latency
from headrace.stores import SQLite

__all__ = [
    "FLOWS",
    "LATE",
    "REALTIME",
    "Order",
    "event",
    "fill",
    "key_of",
    "keys_event",
    "many_flows_app",
    "one_flow_app",
    "produce",
    "product_of",
    "quantity_of",
]

LATE = timedelta(seconds=30)
PRODUCTS = 1_000
_PER_S = 1_000
"""Number of orders with the same second of event time."""
_VALUE = b'{"order_id":"%s","customer_id":"c%04d","product_id":"%s","quantity":%d,"at":"%s","note":null}'
_FILL_S = 300.0
_SCATTER, _SCATTERED = 2_654_435_761, 2**32
"""Map consecutive numbers to distinct keys that are far from each other."""


@dataclass(frozen=True)
class Order:
    order_id: str
    customer_id: str
    product_id: str
    quantity: int
    at: datetime
    note: str | None = None


def large_orders(orders: DataFrame) -> DataFrame:
    large = orders.where(F.col("quantity") > 1)
    return large.withColumn("cents", F.col("quantity") * 1999).select(
        "order_id", "product_id", "quantity", "cents", "at"
    )


def per_minute(orders: DataFrame) -> DataFrame:
    grouped = orders.groupBy("product_id", F.window("at", "1 minute").alias("window"))
    counts = grouped.agg(F.count(F.lit(1)).alias("orders"), F.sum("quantity").alias("pieces"))
    return counts.select("product_id", F.col("window.start").alias("minute"), "orders", "pieces")


def per_key(orders: DataFrame) -> DataFrame:
    """Count keys. An order has ``quantity`` consecutive keys. The first key is the number in the order's product."""
    steps = F.explode(F.sequence(F.lit(0), F.col("quantity") - 1)).alias("step")
    stepped = orders.select("product_id", "quantity", steps)
    number = (F.col("product_id").cast("long") + F.col("step")) * _SCATTER
    keyed = stepped.withColumn("key_id", F.pmod(number, F.lit(_SCATTERED)))
    return keyed.groupBy("key_id").agg(F.count(F.lit(1)).alias("times"), F.sum("quantity").alias("pieces"))


FLOWS = {
    "large_orders": large_orders,
    "large_orders_now": large_orders,
    "per_minute": per_minute,
    "per_key": per_key,
}
_KEYS = {
    "large_orders": ["order_id"],
    "large_orders_now": ["order_id"],
    "per_minute": ["product_id", "minute"],
    "per_key": ["key_id"],
}
REALTIME = "large_orders_now"


def one_flow_app(query: str, topic: str, output: str) -> tuple[App, Flow]:
    """Return an app with one flow from ``topic`` to ``output``, and a view of the output."""
    app = App(f"bench-{output}")
    orders = app.topic(topic, Order, key="order_id", time="at", late=LATE)
    output_topic = app.topic(output, key=_KEYS[query])
    latency: Latency = "realtime" if query == REALTIME else "batch"
    flow = app.flow(
        reads=[orders],
        writes=output_topic,
        name=f"{output}-flow",
        latency=latency,
        unbounded=query == "per_key",
    )(FLOWS[query])
    app.view("seen", output_topic, store=SQLite())
    return app, flow


def many_flows_app(query: str, topic: str, output: str, count: int) -> App:
    """Return an app with this many flows over one topic. Each flow computes something different."""
    app = App(f"bench-{output}")
    orders = app.topic(topic, Order, key="order_id", time="at", late=LATE)
    for number in range(count):
        output_topic = app.topic(f"{output}-{number}", key=_KEYS[query])
        app.flow(reads=[orders], writes=output_topic, name=f"{output}-{number}-flow")(_variant(query, number))
    return app


def _variant(query: str, number: int) -> Callable[[DataFrame], DataFrame]:
    function = FLOWS[query]

    def derive(orders: DataFrame) -> DataFrame:
        return function(orders.where(F.col("quantity") != -1 - number))

    return derive


def event(number: int, at: datetime) -> tuple[bytes, bytes]:
    """Return key and value of the record of an order."""
    key = key_of(number).encode()
    event_time = at.strftime("%Y-%m-%dT%H:%M:%S.%fZ").encode()
    fields = (key, number * 7919 % 10_000, product_of(number).encode(), quantity_of(number), event_time)
    return key, _VALUE % fields


def keys_event(number: int, first: int, count: int, at: datetime) -> tuple[bytes, bytes]:
    """Return key and value of the record of an order for ``per_key``."""
    key = key_of(number).encode()
    event_time = at.strftime("%Y-%m-%dT%H:%M:%S.%fZ").encode()
    return key, _VALUE % (key, 0, b"%d" % first, count, event_time)


def key_of(number: int) -> str:
    return f"o{number:09}"


def product_of(number: int) -> str:
    return f"p{number * 104_729 % PRODUCTS:03}"


def quantity_of(number: int) -> int:
    return number % 4 + 1


def _events(count: int) -> Iterator[tuple[bytes, bytes]]:
    """Yield orders with increasing event times, all in the past."""
    first_at = datetime.now(UTC) - timedelta(seconds=count / _PER_S + 60)
    for number in range(count):
        yield event(number, first_at + timedelta(microseconds=number * 1_000_000 // _PER_S))


def fill(cluster: Cluster, topic: str, count: int, partitions: int) -> None:
    """Create a topic with this many orders, spread evenly over the partitions."""
    produce(cluster, topic, _events(count), partitions)


def produce(cluster: Cluster, topic: str, events: Iterable[tuple[bytes, bytes]], partitions: int) -> None:
    """Write to the partitions in turn, so that all partitions grow alike."""
    cluster.ensure_topic(topic, partitions)
    producer = cluster.producer(
        {"linger.ms": 20, "compression.type": "lz4", "queue.buffering.max.messages": 200_000}
    )
    errors: list[str] = []

    def on_delivery(error: KafkaError | None, _: Message) -> None:
        if error is not None:
            errors.append(str(error))

    count = 0
    for key, value in events:
        while True:
            try:
                producer.produce(topic, value, key, partition=count % partitions, on_delivery=on_delivery)
                break
            except BufferError:
                producer.poll(0.05)
        count += 1
    unacknowledged = producer.flush(_FILL_S)
    if errors or unacknowledged:
        raise SystemExit(
            f"{len(errors)} of {count} orders failed ({errors[:1]}), {unacknowledged} were not acknowledged"
        )
