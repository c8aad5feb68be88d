"""Rows that stores are filled with: as a class, as records of a topic, and as a view that is built of them."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal

from bench.store_cases import SHAPE
from headrace.views.changes import Changes
from headrace.views.position import NO_BATCH, Position
from headrace.views.rows import Row
from headrace.views.store import Fence, Part, Store

__all__ = ["Sold", "fill", "records", "some_rows"]

_AT_ONCE = 10_000


@dataclass(frozen=True)
class Sold:
    """The rows as a topic has them."""

    order_id: str
    customer: str | None
    amount: int | None
    share: float | None
    at: datetime | None
    price: Decimal | None
    paid: bool | None
    note: str | None


def records(rows: Sequence[Row]) -> Iterator[tuple[bytes, bytes]]:
    names = SHAPE.names
    for row in rows:
        # An exact number has its digits, which Python's encoder would not write.
        told = {name: value for name, value in zip(names, row, strict=True) if name != "price"}
        value = f'{json.dumps(told)[:-1]}, "price": {row[names.index("price")]!s}}}'
        yield str(row[0]).encode(), value.encode()


def some_rows(count: int) -> list[Row]:
    rng = random.Random(count)
    return [
        (
            f"order-{number:09}",
            f"customer {rng.randrange(10**6)} of a small town",
            rng.randrange(10**9),
            rng.random(),
            f"2026-01-31T12:{number // 60 % 60:02}:{number % 60:02}.123456Z",
            f"{rng.randrange(10**6)}.{number % 10**6:06}",
            number % 3 == 0,
            None,
        )
        for number in range(count)
    ]


def fill(store: Store, rows: Sequence[Row]) -> None:
    """As a follower builds a view: batch by batch, and then it serves."""
    fence = Fence(store.take("bench", 1), 1)

    def at(batch: int) -> Position:
        return Position("orders", "an id", {0: batch * _AT_ONCE}, 1, batch, "progress")

    store.begin(SHAPE, at(NO_BATCH), "a measurement", fence)
    for batch, first in enumerate(range(0, len(rows), _AT_ONCE)):
        changes = Changes(SHAPE)
        for row in rows[first : first + _AT_ONCE]:
            changes.put(row)
        store.apply(Part.BUILDING, changes, at(batch - 1), at(batch), fence)
    store.swap(fence)
