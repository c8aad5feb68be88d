"""An app with a table, events, and a view of each, under names that no other test uses."""

from __future__ import annotations

import os
from dataclasses import dataclass
from decimal import Decimal

from headrace import App

__all__ = ["Order", "Product", "add_shop", "app", "shop"]


@dataclass(frozen=True)
class Product:
    product_id: str
    name: str
    price: Decimal
    weight: float | None = None


@dataclass(frozen=True)
class Order:
    order_id: str
    product_id: str
    pieces: int


def shop(name: str) -> App:
    app = App("shop")
    add_shop(app, name)
    return app


def add_shop(app: App, name: str) -> None:
    products = app.table(f"{name}-products", Product, key="product_id")
    orders = app.topic(f"{name}-orders", Order, key="order_id")
    app.view(f"{name}-products-view", products)
    app.view(f"{name}-orders-view", orders, key=["product_id", "order_id"])


app = shop(os.environ.get("SHOP_NAME", "shop"))
