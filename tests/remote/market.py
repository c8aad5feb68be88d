"""An app with a column of every kind, for clients."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from datetime import date, datetime
from decimal import Decimal
from enum import Enum

from headrace import App

__all__ = ["Fruit", "Order", "Taste", "app", "market"]


class Taste(Enum):
    SWEET = "sweet"
    SOUR = "sour"


@dataclass(frozen=True)
class Origin:
    country: str
    altitude: int | None = None


@dataclass(frozen=True)
class Fruit:
    fruit_id: str
    price: Decimal
    pieces: int | None = None
    weight: float | None = None
    ripe: bool | None = None
    picked: datetime | None = None
    best_before: date | None = None
    picture: bytes | None = None
    taste: Taste | None = None
    names: list[str] = field(default_factory=list)
    stock: dict[str, int] = field(default_factory=dict)
    origin: Origin | None = None


@dataclass(frozen=True)
class Order:
    order_id: str
    fruit_id: str
    pieces: int


def market(name: str) -> App:
    # The app name of the test follower.
    app = App("shop")
    fruits = app.table(f"{name}-fruits", Fruit, key="fruit_id")
    orders = app.topic(f"{name}-orders", Order, key="order_id")
    app.view(f"{name}-fruits-view", fruits)
    app.view(f"{name}-orders-view", orders, key=["fruit_id", "order_id"])
    return app


app = market(os.environ.get("MARKET_NAME", "market"))
