"""The store of a view, as it is declared."""

from __future__ import annotations

from pathlib import Path

from headrace.model.view import View
from headrace.views.sqlite import SqliteStore
from headrace.views.store import Store

__all__ = ["file_of", "open_store"]


def file_of(view: View, app: str, data: Path) -> Path:
    """``<app>.db`` in the data directory, so that an app's views can be joined, unless the view names a file."""
    return Path(view.store.path) if view.store.path else data / f"{app}.db"


def open_store(view: View, app: str, data: Path) -> Store:
    return SqliteStore(file_of(view, app, data), view.name)
