"""Rows by key through a store's own driver: one process, one connection, one read after the other.

    python -m bench.serve.bare_reads TASK

It reads the table that the server reads, without its position and without JSON.
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

from bench.serve.http_load import percentile

__all__ = ["DRIVERS"]

Read = Callable[[str], Any]
"""Reads one row by its key."""


@dataclass(frozen=True, slots=True)
class _Task:
    store: str
    address: str
    """A file, a folder, or an address."""
    view: str
    key: str
    rows: int
    warm_s: float
    seconds: float


def _sqlite(address: str, view: str) -> Read:
    connection = sqlite3.connect(f"file:{address}?mode=ro", uri=True, isolation_level=None)
    statement = f"SELECT * FROM {view} WHERE order_id = ?"
    return lambda key: connection.execute(statement, (key,)).fetchone()


def _postgres(address: str, view: str) -> Read:
    import psycopg

    connection = psycopg.connect(address, autocommit=True)
    statement = f"SELECT * FROM {view} WHERE order_id = %s"
    return lambda key: connection.execute(statement, (key,), prepare=True).fetchone()


def _redis(address: str, view: str) -> Read:
    import redis

    client = redis.Redis.from_url(address)
    name = f"bench-points:{view}"
    return lambda key: client.hget(name, key)


def _search(address: str, view: str) -> Read:
    import tantivy

    # Of the folders below the view's name, exactly one contains an index.
    (folder,) = {path.parent for path in (Path(address) / view).rglob("meta.json")}
    index = tantivy.Index.open(str(folder))
    searcher, schema = index.searcher(), index.schema

    def read(key: str) -> Any:
        query = tantivy.Query.term_query(schema, "_headrace_key", f'=["{key}"]', index_option="basic")
        ((_, address),) = searcher.search(query, 1, count=False).hits
        return searcher.doc(address).get_first("_headrace_row")

    return read


def _delta(address: str, view: str) -> Read:
    from deltalake import DeltaTable, QueryBuilder

    def read(key: str) -> Any:
        # Open the table for each read, to get the current rows.
        table = DeltaTable(str(Path(address) / view))
        rows = QueryBuilder().register("t", table).execute(f"SELECT * FROM t WHERE order_id = '{key}'")
        return rows.read_all().num_rows

    return read


DRIVERS: dict[str, tuple[Callable[[str, str], Read], str]] = {
    "sqlite": (_sqlite, "sqlite3"),
    "postgres": (_postgres, "psycopg, a prepared statement"),
    "redis": (_redis, "redis-py, HGET"),
    "search": (_search, "tantivy, one searcher that stays open"),
    "delta": (_delta, "deltalake, its own SQL"),
}
"""For each store: how to read it, and the name of the driver in the results."""


def main() -> None:
    task = _Task(**json.loads(sys.argv[1]))
    read = DRIVERS[task.store][0](task.address, task.view)
    rng = random.Random(1)
    began = time.perf_counter()
    counts_from, until = began + task.warm_s, began + task.warm_s + task.seconds
    spans: list[float] = []
    now = began
    while now < until:
        key = task.key.format(rng.randrange(task.rows))
        sent = time.perf_counter()
        row = read(key)
        now = time.perf_counter()
        if not row:
            raise SystemExit(f"{task.address} has no row {key}")
        if now >= counts_from:
            spans.append(now - sent)
    spans.sort()
    figures = {"rate": len(spans) / (now - counts_from)}
    print(
        json.dumps(
            {**figures, "p50_ms": percentile(spans, 0.5) * 1e3, "p99_ms": percentile(spans, 0.99) * 1e3}
        )
    )


if __name__ == "__main__":
    main()
