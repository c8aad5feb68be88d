"""Generates traffic for the shop: price changes, orders and clicks. Some are late, and some are invalid.

headrace run examples.shop:app --feed examples.shop.traffic:feed
"""

from __future__ import annotations

import random
import threading
import time
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

from examples.shop import Category, Click, Order, Product, clicks, orders, products

__all__ = ["feed"]

_PRODUCTS = 20
_ORDERS_PER_S = 50
_CLICKS_PER_S = 200
_STEP_S = 0.1


class Traffic:
    def __init__(self, cluster: Any, seed: int = 1) -> None:
        self._producer = cluster.producer({"linger.ms": 5})
        self._random = random.Random(seed)
        self._started = int(time.time())
        self._orders = 0
        self._clicks = 0

    def price(self, number: int) -> None:
        price = Decimal(self._random.randrange(100, 10_000)) / 100
        category = list(Category)[number % len(Category)]
        product = Product(f"p{number:02}", f"product {number}", category, price)
        self._send(products, product)

    def order(self, now: datetime) -> None:
        self._orders += 1
        order = Order(
            f"o-{self._started}-{self._orders}",
            f"c{self._random.randrange(500)}",
            self._product(),
            self._random.randrange(1, 5),
            self._when(now),
        )
        self._send(orders, order)

    def click(self, now: datetime) -> None:
        self._clicks += 1
        session = f"s{self._random.randrange(300)}"
        self._send(
            clicks, Click(f"k-{self._started}-{self._clicks}", session, self._product(), self._when(now))
        )

    def nonsense(self) -> None:
        """Send a value that is not JSON. It becomes a dead letter."""
        self._put(orders.name, b'{"order_id": 12', b"nonsense")

    def flush(self) -> None:
        self._producer.flush(10)

    def _product(self) -> str:
        # The products with low numbers sell more often.
        return f"p{min(self._random.randrange(_PRODUCTS), self._random.randrange(_PRODUCTS)):02}"

    def _when(self, now: datetime) -> datetime:
        """Return an event time: usually now, sometimes a little earlier, rarely so early that the event is late."""
        dice = self._random.random()
        if dice < 0.002:
            return now - timedelta(minutes=10)
        return now - timedelta(seconds=self._random.random() * 20) if dice < 0.2 else now

    def _send(self, topic: Any, event: Any) -> None:
        key, value = topic.encode(event)
        self._put(topic.name, value, key)

    def _put(self, topic: str, value: bytes, key: bytes) -> None:
        """Produce a record. Also poll the producer: without a poll, acknowledged records would remain in its queue."""
        while True:
            try:
                self._producer.produce(topic, value, key)
            except BufferError:
                self._producer.poll(_STEP_S)
            else:
                self._producer.poll(0)
                return


def feed(cluster: Any, stop: threading.Event) -> None:
    """Write traffic until ``stop`` is set."""
    traffic = Traffic(cluster)
    for number in range(_PRODUCTS):
        traffic.price(number)
    traffic.flush()
    steps = 0
    while not stop.wait(_STEP_S):
        now = datetime.now(UTC)
        for _ in range(round(_ORDERS_PER_S * _STEP_S)):
            traffic.order(now)
        for _ in range(round(_CLICKS_PER_S * _STEP_S)):
            traffic.click(now)
        steps += 1
        if steps % 50 == 0:
            traffic.price(steps // 50 % _PRODUCTS)
        if steps % 100 == 0:
            traffic.nonsense()
    traffic.flush()
