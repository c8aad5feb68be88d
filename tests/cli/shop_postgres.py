"""An app with one view in PostgreSQL, as a user would name it on the command line."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal

from headrace import App
from headrace.stores import Postgres


@dataclass(frozen=True)
class Product:
    product_id: str
    name: str
    price: Decimal
    weight: float = 0.0
    picture: bytes | None = None


app = App("shop")
app.view(
    "pg-products",
    app.table("pg-products", Product, key="product_id"),
    store=Postgres(url="$SHOP_DATABASE", schema="cli"),
)
