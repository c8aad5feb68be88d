"""An app with one view in Redis, as a user would name it on the command line."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal

from headrace import App
from headrace.stores import Redis


@dataclass(frozen=True)
class Product:
    product_id: str
    name: str
    price: Decimal
    weight: float = 0.0
    picture: bytes | None = None


app = App("shop")
app.view("redis-products", app.table("redis-products", Product, key="product_id"), store=Redis("$SHOP_REDIS"))
