"""The stores that a view can be kept in."""

from headrace.model.store import SQLite

__all__ = ["SQLite"]
