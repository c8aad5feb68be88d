"""The stores that a view can be kept in."""

from headrace.model.store import Delta, Postgres, Redis, Search, SQLite

__all__ = ["Delta", "Postgres", "Redis", "SQLite", "Search"]
