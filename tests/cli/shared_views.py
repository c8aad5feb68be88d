"""An app with four views that several processes share."""

from __future__ import annotations

from dataclasses import dataclass

from headrace import App

__all__ = ["app"]

app = App("sharing")


@dataclass(frozen=True)
class Item:
    item_id: str
    pieces: int


items = app.table("sharing-items", Item, key="item_id")
for name in ("one", "two", "three", "four"):
    app.view(name, items)
