"""The shop's sales in each store: reads all rows, and writes a wrong number into one row."""

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import Callable
from contextlib import closing
from decimal import Decimal
from pathlib import Path
from typing import Any

import tantivy
from deltalake import DeltaTable

from faults.servers.postgres import PostgresServer
from faults.stores.delta import read_delta_table
from faults.stores.search import read_search_index

__all__ = ["Stores"]

Row = tuple[str | None, int, Decimal | None]
"""Product, pieces, amount."""


class Stores:
    """``home`` contains the SQLite file, the search index and the Delta table."""

    def __init__(self, home: Path, server: PostgresServer, database: str, redis: Any) -> None:
        self._home = home
        self._server, self._database, self._redis = server, database, redis

    def rows(self) -> dict[str, dict[str, Row]]:
        """Return the row of each order, by view and order id."""
        columns = "order_id, product_id, quantity, amount"
        with closing(sqlite3.connect(self._home / "shop.db")) as store:
            sqlite = store.execute(f"SELECT {columns} FROM sales").fetchall()
        postgres = self._server.execute(f"SELECT {columns} FROM shop.sales_sql", self._database)
        cache = [json.loads(value) for value in self._redis.hgetall("shop:sales_cache").values()]
        search_rows = read_search_index(self._home / "shop.search", "sales_found")
        lake = read_delta_table(self._home / "shop.lake" / "sales_lake")
        assert search_rows is not None
        assert lake is not None
        return {
            "sales": _by_order(sqlite),
            "sales_sql": _by_order(postgres),
            "sales_cache": _by_order(_tuples(cache)),
            "sales_found": _by_order(_tuples(search_rows[1])),
            "sales_lake": _by_order(_tuples(lake[1])),
        }

    def write_wrong_quantity(self, view: str, order: str) -> None:
        """Write a wrong quantity into the row of the order, past Headrace."""
        writers: dict[str, Callable[[str], None]] = {
            "sales": self._change_sqlite,
            "sales_sql": self._change_postgres,
            "sales_cache": self._change_redis,
            "sales_found": self._change_search_index,
            "sales_lake": self._change_delta,
        }
        writers[view](order)

    def _change_sqlite(self, order: str) -> None:
        with closing(sqlite3.connect(self._home / "shop.db")) as store, store:
            store.execute("UPDATE sales SET quantity = quantity + 1 WHERE order_id = ?", (order,))

    def _change_postgres(self, order: str) -> None:
        self._server.execute(
            f"UPDATE shop.sales_sql SET quantity = quantity + 1 WHERE order_id = '{order}'", self._database
        )

    def _change_redis(self, order: str) -> None:
        row = self._redis.hget("shop:sales_cache", order).decode()
        self._redis.hset("shop:sales_cache", order, _with_wrong_quantity(row))

    def _change_search_index(self, order: str) -> None:
        home = self._home / "shop.search" / "sales_found"
        catalog = json.loads(max(home.glob("catalog/*.json")).read_text())
        index = tantivy.Index.open(str(home / catalog["serving"]))
        index.register_tokenizer(
            "headrace_words", tantivy.TextAnalyzerBuilder(tantivy.Tokenizer.simple()).build()
        )
        key = f'=["{order}"]'
        searcher, writer = index.searcher(), index.writer(15_000_000, 1)
        query = tantivy.Query.term_query(index.schema, "_headrace_key", key)
        ((_, address),) = searcher.search(query, 2).hits
        row = bytes(searcher.doc(address).get_first("_headrace_row")).decode()
        document = tantivy.Document()
        document.add_text("_headrace_key", key)
        document.add_bytes("_headrace_row", _with_wrong_quantity(row).encode())
        document.add_unsigned("_headrace_bucket", 1)
        writer.delete_documents_by_term("_headrace_key", key)
        writer.add_document(document)
        writer.commit()
        writer.wait_merging_threads()

    def _change_delta(self, order: str) -> None:
        table = DeltaTable(str(self._home / "shop.lake" / "sales_lake"))
        table.update({"quantity": "quantity + 1"}, predicate=f"order_id = '{order}'")


def _with_wrong_quantity(row: str) -> str:
    return re.sub(r'"quantity":(\d+)', lambda match: f'"quantity":{int(match[1]) + 1}', row)


def _tuples(rows: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    return [(row["order_id"], row["product_id"], row["quantity"], row["amount"]) for row in rows]


def _by_order(rows: list[tuple[Any, ...]]) -> dict[str, Row]:
    return {
        order: (product, int(pieces), None if amount is None else Decimal(str(amount)))
        for order, product, pieces, amount in rows
    }
