"""An app with views in folders, for the command line: a full-text index and a Delta table."""

from __future__ import annotations

from headrace import App
from headrace.stores import Delta, Search
from tests.cli.product import Product

app = App("shop")
products = app.table("folder-products", Product, key="product_id")
app.view("found", products, store=Search(fields=["name"]))
app.view("lake", products, store=Delta())
