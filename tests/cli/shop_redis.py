"""An app with one view in Redis, for the command line."""

from __future__ import annotations

from headrace import App
from headrace.stores import Redis
from tests.cli.product import Product

app = App("shop")
app.view("redis-products", app.table("redis-products", Product, key="product_id"), store=Redis("$SHOP_REDIS"))
