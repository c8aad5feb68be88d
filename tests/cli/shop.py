"""A small app for commands that need one: a table of products, and orders that a flow would read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from headrace import App
from tests.cli.product import Product

__all__ = ["app"]

app = App("shop")


@dataclass(frozen=True)
class Order:
    order_id: str
    product: str


products = app.table("cli-products", Product, key="product_id")
orders = app.topic("cli-orders", Order, key="order_id")
sales = app.topic("cli-sales", key="product")


@app.flow(reads=[orders], writes=sales, name="cli-sell")
def sell(orders: Any) -> Any:
    return orders


app.view("products", products)
app.view("sales", sales)
not_an_app = 7
