"""The served apps of the benchmarks. ``BENCH_SERVED`` selects one."""

from __future__ import annotations

import os
from dataclasses import dataclass

from bench.flow.sample_rows import SampleRow
from headrace import App
from headrace.model.declarations import View
from headrace.model.store import Store
from headrace.stores import Delta, Postgres, Redis, Search, SQLite

__all__ = [
    "POINTS",
    "STORES",
    "TICKS",
    "VARIABLE",
    "Tick",
    "app",
    "only_view",
    "points_app",
    "ticks_app",
    "view_name",
]

VARIABLE = "BENCH_SERVED"
POINTS, TICKS = "points", "ticks"
STORES: dict[str, Store] = {
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
    """Microseconds on the monotonic clock, which all processes share."""
    note: str


def points_app() -> App:
    """Return an app with one view of orders in each store."""
    app = App("bench-points")
    orders = app.topic("sold", SampleRow, key="order_id")
    for name, store in STORES.items():
        app.view(view_name(name), orders, store=store)
    return app


def view_name(store: str) -> str:
    return f"orders_{store}"


def ticks_app() -> App:
    """Return an app with one view of a table that changes continuously."""
    app = App("bench-ticks")
    app.view(TICKS, app.table(TICKS, Tick, key="tick_id"))
    return app


def only_view(app: App) -> View:
    (view,) = app.views
    return view


app = points_app() if os.environ.get(VARIABLE) == POINTS else ticks_app()
