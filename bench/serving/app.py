"""The apps that are served while they are measured; ``BENCH_SERVED`` says which."""

from __future__ import annotations

import os
from dataclasses import dataclass

from bench.sold import Sold
from headrace import App
from headrace.model.view import View
from headrace.stores import Delta, Postgres, Redis, Search, SQLite

__all__ = [
    "POINTS",
    "STORES",
    "TICKS",
    "VARIABLE",
    "Tick",
    "app",
    "of_stores",
    "of_ticks",
    "view_in",
    "view_of",
]

VARIABLE = "BENCH_SERVED"
POINTS, TICKS = "points", "ticks"
STORES = {
    "sqlite": SQLite(),
    "postgres": Postgres(),
    "redis": Redis(),
    "search": Search(),
    "delta": Delta(),
}


@dataclass(frozen=True)
class Tick:
    tick_id: str
    due_us: int
    """By the machine's steady clock, which all its processes share."""
    note: str


def of_stores() -> App:
    """One view of orders in each store."""
    app = App("bench-points")
    sold = app.topic("sold", Sold, key="order_id")
    for name, store in STORES.items():
        app.view(view_in(name), sold, store=store)
    return app


def view_in(store: str) -> str:
    return f"orders_{store}"


def of_ticks() -> App:
    """One view of a table, which changes all the time."""
    app = App("bench-ticks")
    app.view(TICKS, app.table(TICKS, Tick, key="tick_id"))
    return app


def view_of(app: App) -> View:
    (view,) = app.views
    return view


app = of_stores() if os.environ.get(VARIABLE) == POINTS else of_ticks()
