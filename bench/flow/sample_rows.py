"""Sample rows of the store benchmarks: their dataclass, rows, topic records, and a store that is filled with a view."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal

from bench.flow.store_cases import SCHEMA
from headrace.stores.position import NO_BATCH, Position
from headrace.stores.rows import Row
from headrace.stores.writer import Changes, Fence, Part, StoreWriter

__all__ = ["SampleRow", "fill", "records", "sample_rows"]

_BATCH_ROWS = 10_000


@dataclass(frozen=True)
class SampleRow:
    """A row of the topic."""

    order_id: str
    customer: str | None
    amount: int | None
    share: float | None
    at: datetime | None
    price: Decimal | None
    paid: bool | None
    note: str | None


def records(rows: Sequence[Row]) -> Iterator[tuple[bytes, bytes]]:
    names = SCHEMA.names
    for row in rows:
        # Python's JSON encoder cannot write a decimal with all its digits, so the price is appended as text.
        fields = {name: value for name, value in zip(names, row, strict=True) if name != "price"}
        value = f'{json.dumps(fields)[:-1]}, "price": {row[names.index("price")]!s}}}'
        yield str(row[0]).encode(), value.encode()


def sample_rows(count: int) -> list[Row]:
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


def fill(store: StoreWriter, rows: Sequence[Row]) -> None:
    """Build a view as a follower does: batch by batch, then swap."""
    fence = Fence(store.claim("bench", 1), 1)

    def position_at(batch: int) -> Position:
        return Position("orders", "an id", {0: batch * _BATCH_ROWS}, 1, batch, "progress")

    store.begin(SCHEMA, position_at(NO_BATCH), "a measurement", fence)
    for batch, first in enumerate(range(0, len(rows), _BATCH_ROWS)):
        changes = Changes(SCHEMA)
        for row in rows[first : first + _BATCH_ROWS]:
            changes.put(row)
        store.apply(Part.BUILDING, changes, position_at(batch - 1), position_at(batch), fence)
    store.swap(fence)
