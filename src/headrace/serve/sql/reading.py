"""The stores of a statement: each is opened once, and gives positions and rows of all its views as of one moment.

Why not the engine's own readers of SQLite, PostgreSQL and Delta: docs/decisions.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa

from headrace.model.extras import needing
from headrace.serve.errors import NotServing
from headrace.serve.sql.messages import Source
from headrace.serve.sql.planning import Need
from headrace.views.position import Standing

__all__ = ["Read", "Reading", "opened"]

Deadline = Callable[[], float]
"""How many seconds are left; raises when none are."""


@dataclass(frozen=True, slots=True)
class Read:
    standing: Standing
    batches: Iterator[pa.RecordBatch]


class Reading(Protocol):
    """One moment of one store. Batches have the columns ``c0``, ``c1``, … in the order of the need."""

    def standing(self, view: str) -> Standing | None: ...

    def read(self, view: str, need: Need, words: str) -> Read:
        """Its standing may be a later one than was told, where a store has no moments; then with the same columns."""


@contextlib.contextmanager
def opened(source: Source, left: Deadline, kept: dict[str, Any]) -> Iterator[Reading]:
    """``kept`` is for what is worth keeping open from one statement to the next."""
    path = Path(source.place)
    if source.kind in ("sqlite", "search", "delta") and not path.exists():
        raise not_built(source.view)
    match source.kind:
        case "sqlite":
            from headrace.serve.sql.sqlite_reading import sqlite_reading

            with sqlite_reading(path, left) as reading:
                yield reading
        case "postgres":
            with needing("postgres", "psycopg"):
                from headrace.serve.sql.postgres_reading import postgres_reading

            with postgres_reading(source, left, kept) as postgres:
                yield postgres
        case "delta":
            with needing("delta", "deltalake"):
                from headrace.serve.sql.delta_reading import DeltaReading

            yield DeltaReading(path, left)
        case "redis":
            with needing("redis", "redis"):
                from headrace.views.redis.asking import RedisAsker
            from headrace.serve.sql.asked_reading import AskedReading

            with contextlib.closing(RedisAsker(source.place, source.under, source.view)) as asker:
                yield AskedReading(asker, left)
        case "search":
            with needing("search", "tantivy"):
                from headrace.views.search.asking import SearchAsker
            from headrace.serve.sql.asked_reading import AskedReading

            with contextlib.closing(SearchAsker(path)) as searcher:
                yield AskedReading(searcher, left)
        case _:
            raise NotImplementedError(source.kind)


def not_built(view: str) -> NotServing:
    return NotServing(
        f"view {view!r} has nothing to read yet",
        hint="it is built by whoever follows it: headrace run, or headrace view follow",
    )
