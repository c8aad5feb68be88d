"""Which store a view is kept in, as it is declared; ``headrace.views`` has what acts on one."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["SQLite", "Store"]


@dataclass(frozen=True, slots=True)
class SQLite:
    """A SQLite file; without a path, ``<app>.db`` in the data directory, so that an app's views can be joined."""

    path: str = ""


Store = SQLite
