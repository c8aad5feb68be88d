"""The stores that an app can declare for a view. ``OnRead`` declares a view without a store: each query computes it."""

from headrace.model.store import Delta, OnRead, Postgres, Redis, Search, SQLite

__all__ = ["Delta", "OnRead", "Postgres", "Redis", "SQLite", "Search"]
