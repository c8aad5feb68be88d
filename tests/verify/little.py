"""An app for the command line: one table, one view, no flow."""

from __future__ import annotations

from dataclasses import dataclass

from headrace import App


@dataclass(frozen=True)
class Order:
    order: str
    amount: int


app = App("little")
orders = app.table("little-orders", Order, key="order")
app.view("little-orders", orders)
