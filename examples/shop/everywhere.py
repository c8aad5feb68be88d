"""The shop with views in five stores at once. It has the same topics and flows, and more views.

The views of ``examples.shop`` are unchanged, in SQLite. Products, sales and the ranking also have these views:

    ..._sql     PostgreSQL, at $SHOP_DATABASE, in the schema "shop"
    ..._cache   Redis, at $SHOP_REDIS
    ..._found   a full-text index
    ..._lake    a Delta table

headrace run examples.shop.everywhere:app --feed examples.shop.traffic:feed
"""

from __future__ import annotations

from examples.shop import app as shop
from examples.shop import products, ranking, sales
from headrace import App
from headrace.stores import Delta, Postgres, Redis, Search

__all__ = ["app"]

app = App(shop.name)
app.topics += shop.topics
app.flows += shop.flows
app.views += shop.views

for name, topic in (("products", products), ("sales", sales), ("ranking", ranking)):
    app.view(f"{name}_sql", topic, store=Postgres(url="$SHOP_DATABASE", schema="shop"))
    app.view(f"{name}_cache", topic, store=Redis(url="$SHOP_REDIS"))
    app.view(f"{name}_found", topic, store=Search())
    app.view(f"{name}_lake", topic, store=Delta())
