"""An app with views in folders, as a user would name it on the command line: a full-text index and a Delta table."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal

from headrace import App
from headrace.stores import Delta, Search


@dataclass(frozen=True)
class Product:
    product_id: str
    name: str
    price: Decimal
    weight: float = 0.0
    picture: bytes | None = None


app = App("shop")
products = app.table("folder-products", Product, key="product_id")
app.view("found", products, store=Search(fields=["name"]))
app.view("lake", products, store=Delta())
