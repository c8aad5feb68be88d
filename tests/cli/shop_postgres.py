"""An app with one view in PostgreSQL, for the command line."""

from __future__ import annotations

from headrace import App
from headrace.stores import Postgres
from tests.cli.product import Product

app = App("shop")
app.view(
    "pg-products",
    app.table("pg-products", Product, key="product_id"),
    store=Postgres(url="$SHOP_DATABASE", schema="cli"),
)
