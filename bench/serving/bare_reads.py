"""Rows by their key through a store's own driver: one process, one connection, one read after the other.

    python -m bench.serving.bare_reads TASK

What is read is the table that the server reads. Nothing is said of its position, and no row becomes JSON.
"""

from __future__ import annotations

import json
import random
import sqlite3
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.serving.spans import at_share

__all__ = ["DRIVERS"]

Read = Callable[[str], Any]
"""Of one row, by its key."""


@dataclass(frozen=True, slots=True)
class _Task:
    store: str
    place: str
    """A file, a folder, or an address."""
    view: str
    key: str
    rows: int
    warm_s: float
    seconds: float


def _sqlite(place: str, view: str) -> Read:
    connection = sqlite3.connect(f"file:{place}?mode=ro", uri=True, isolation_level=None)
    statement = f"SELECT * FROM {view} WHERE order_id = ?"
    return lambda key: connection.execute(statement, (key,)).fetchone()


def _postgres(place: str, view: str) -> Read:
    import psycopg

    connection = psycopg.connect(place, autocommit=True)
    statement = f"SELECT * FROM {view} WHERE order_id = %s"
    return lambda key: connection.execute(statement, (key,), prepare=True).fetchone()


def _redis(place: str, view: str) -> Read:
    import redis

    client = redis.Redis.from_url(place)
    name = f"bench-points:{view}"
    return lambda key: client.hget(name, key)


def _search(place: str, view: str) -> Read:
    import tantivy

    # A view's index is in the one folder beside its catalogue that has one.
    (folder,) = {one.parent for one in (Path(place) / view).rglob("meta.json")}
    index = tantivy.Index.open(str(folder))
    searcher, schema = index.searcher(), index.schema

    def read(key: str) -> Any:
        query = tantivy.Query.term_query(schema, "_headrace_key", f'=["{key}"]', index_option="basic")
        ((_, address),) = searcher.search(query, 1, count=False).hits
        return searcher.doc(address).get_first("_headrace_row")

    return read


def _delta(place: str, view: str) -> Read:
    from deltalake import DeltaTable, QueryBuilder

    def read(key: str) -> Any:
        # Opened for each, as whoever wants what is there now does.
        table = DeltaTable(str(Path(place) / view))
        asked = QueryBuilder().register("t", table).execute(f"SELECT * FROM t WHERE order_id = '{key}'")
        return asked.read_all().num_rows

    return read


DRIVERS: dict[str, tuple[Callable[[str, str], Read], str]] = {
    "sqlite": (_sqlite, "sqlite3"),
    "postgres": (_postgres, "psycopg, a prepared statement"),
    "redis": (_redis, "redis-py, HGET"),
    "search": (_search, "tantivy, one searcher that stays open"),
    "delta": (_delta, "deltalake, its own SQL"),
}
"""How each is read, and by what, for a reader of the results."""


def main() -> None:
    task = _Task(**json.loads(sys.argv[1]))
    read = DRIVERS[task.store][0](task.place, task.view)
    rng = random.Random(1)
    began = time.perf_counter()
    counts_from, until = began + task.warm_s, began + task.warm_s + task.seconds
    spans: list[float] = []
    now = began
    while now < until:
        key = task.key.format(rng.randrange(task.rows))
        asked = time.perf_counter()
        found = read(key)
        now = time.perf_counter()
        if not found:
            raise SystemExit(f"{task.place} has no row {key}")
        if now >= counts_from:
            spans.append(now - asked)
    spans.sort()
    told = {"rate": len(spans) / (now - counts_from)}
    print(json.dumps({**told, "p50_ms": at_share(spans, 0.5) * 1e3, "p99_ms": at_share(spans, 0.99) * 1e3}))


if __name__ == "__main__":
    main()
