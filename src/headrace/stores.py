"""The stores that a view can be kept in; and OnRead, for one that is computed when it is asked for."""

from headrace.model.store import Delta, OnRead, Postgres, Redis, Search, SQLite

__all__ = ["Delta", "OnRead", "Postgres", "Redis", "SQLite", "Search"]
