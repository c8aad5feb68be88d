"""An app whose store is replaced, in three versions: before, with both stores, and after."""

from __future__ import annotations

from dataclasses import dataclass

from headrace import App
from headrace.stores import SQLite

__all__ = ["after", "before", "both", "other"]


@dataclass(frozen=True)
class Item:
    item_id: str
    pieces: int


def _app(*views: tuple[str, str]) -> App:
    app = App("replaced")
    items = app.table("replaced-items", Item, key="item_id")
    for name, path in views:
        app.view(name, items, store=SQLite(path))
    return app


before = _app(("stock", "old.db"))
both = _app(("stock", "old.db"), ("stock_new", "new.db"))
after = _app(("stock_new", "new.db"))
other = App("replaced")
other.view("stock", other.table("replaced-items", Item, key="item_id"), store=SQLite("old.db"))
other.view("elsewhere", other.table("replaced-others", Item, key="item_id"), store=SQLite("new.db"))
