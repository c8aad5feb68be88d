"""Workers: parcels that arrive at depots, and a stock of items.

parcels   events: a parcel arrived at a depot
stock     a table: the number of pieces of each item

headrace view follow examples.workers:app
python -m examples.workers.story
"""

from __future__ import annotations

from dataclasses import dataclass

from headrace import App
from headrace.stores import SQLite

app = App("workers")


@dataclass(frozen=True)
class Parcel:
    parcel_id: str
    depot: str


@dataclass(frozen=True)
class Stock:
    item: str
    pieces: int


parcels = app.topic("worker-parcels", Parcel, key="depot")
stock = app.table("worker-stock", Stock, key="item")

app.view("parcels", parcels, key="parcel_id", store=SQLite())
app.view("stock", stock, store=SQLite())
