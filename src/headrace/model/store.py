"""Which store a view is kept in, as it is declared; ``headrace.views`` has what acts on one.

An address may name a variable of the environment, as ``$DATABASE_URL``: it is looked up when the store is opened, and
what it holds is never shown.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["Delta", "OnRead", "Postgres", "Redis", "SQLite", "Search", "Store"]


@dataclass(frozen=True, slots=True)
class SQLite:
    """A SQLite file; without a path, ``<app>.db`` in the data directory, so that an app's views can be joined."""

    path: str = ""


@dataclass(frozen=True, slots=True)
class Postgres:
    """A table with the view's name, in a schema of a PostgreSQL database."""

    url: str = "$DATABASE_URL"
    schema: str = "public"


@dataclass(frozen=True, slots=True)
class Redis:
    """A hash per view under ``<prefix><view>``, a field per row: its key, and the row as JSON. Without a prefix,
    ``<app>:``.
    """

    url: str = "$REDIS_URL"
    prefix: str = ""


@dataclass(frozen=True, slots=True)
class Search:
    """A full-text index in a folder; without a path, ``<app>.search`` in the data directory.

    ``fields`` are the ones whose words can be searched for; without them, all texts.
    """

    path: str = ""
    fields: Sequence[str] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "fields", tuple(self.fields))


@dataclass(frozen=True, slots=True)
class Delta:
    """A Delta table in a folder; without a path, ``<app>.lake`` in the data directory."""

    path: str = ""


@dataclass(frozen=True, slots=True)
class OnRead:
    """No store: nothing is followed and nothing is kept. Each question to the server reads the topic to its end and
    folds it; more than ``records_max`` records are refused.
    """

    records_max: int = 100_000


Store = SQLite | Postgres | Redis | Search | Delta | OnRead
