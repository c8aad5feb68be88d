"""A wrong number in one row of the shop's sales, in each store, by that store's own means; and its rows."""

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

from tests.contract.see_delta import look_at_delta
from tests.contract.see_search import look_at_search
from tests.support.postgres import PostgresServer

__all__ = ["Stores"]

Row = tuple[str | None, int, Decimal | None]
"""Product, pieces, amount."""


class Stores:
    """Where the copies are: ``home`` has SQLite, the index and the lake."""

    def __init__(self, home: Path, server: PostgresServer, database: str, redis: Any) -> None:
        self._home = home
        self._server, self._database, self._redis = server, database, redis

    def rows(self) -> dict[str, dict[str, Row]]:
        """By store and order."""
        columns = "order_id, product_id, quantity, amount"
        with closing(sqlite3.connect(self._home / "shop.db")) as store:
            sqlite = store.execute(f"SELECT {columns} FROM sales").fetchall()
        postgres = self._server.execute(f"SELECT {columns} FROM shop.sales_sql", self._database)
        cache = [json.loads(value) for value in self._redis.hgetall("shop:sales_cache").values()]
        found = look_at_search(self._home / "shop.search", "sales_found")
        lake = look_at_delta(self._home / "shop.lake" / "sales_lake")
        assert found is not None
        assert lake is not None
        return {
            "sales": _by_order(sqlite),
            "sales_sql": _by_order(postgres),
            "sales_cache": _by_order(_listed(cache)),
            "sales_found": _by_order(_listed(found[1])),
            "sales_lake": _by_order(_listed(lake[1])),
        }

    def plant(self, view: str, order: str) -> None:
        """One piece more."""
        ways: dict[str, Callable[[str], None]] = {
            "sales": self._sqlite,
            "sales_sql": self._postgres,
            "sales_cache": self._cache,
            "sales_found": self._found,
            "sales_lake": self._lake,
        }
        ways[view](order)

    def _sqlite(self, order: str) -> None:
        with closing(sqlite3.connect(self._home / "shop.db")) as store, store:
            store.execute("UPDATE sales SET quantity = quantity + 1 WHERE order_id = ?", (order,))

    def _postgres(self, order: str) -> None:
        self._server.execute(
            f"UPDATE shop.sales_sql SET quantity = quantity + 1 WHERE order_id = '{order}'", self._database
        )

    def _cache(self, order: str) -> None:
        told = self._redis.hget("shop:sales_cache", order).decode()
        self._redis.hset("shop:sales_cache", order, _one_more(told))

    def _found(self, order: str) -> None:
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
        told = bytes(searcher.doc(address).get_first("_headrace_row")).decode()
        document = tantivy.Document()
        document.add_text("_headrace_key", key)
        document.add_bytes("_headrace_row", _one_more(told).encode())
        document.add_unsigned("_headrace_bucket", 1)
        writer.delete_documents_by_term("_headrace_key", key)
        writer.add_document(document)
        writer.commit()
        writer.wait_merging_threads()

    def _lake(self, order: str) -> None:
        table = DeltaTable(str(self._home / "shop.lake" / "sales_lake"))
        table.update({"quantity": "quantity + 1"}, predicate=f"order_id = '{order}'")


def _one_more(row: str) -> str:
    return re.sub(r'"quantity":(\d+)', lambda found: f'"quantity":{int(found[1]) + 1}', row)


def _listed(rows: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    return [(row["order_id"], row["product_id"], row["quantity"], row["amount"]) for row in rows]


def _by_order(rows: list[tuple[Any, ...]]) -> dict[str, Row]:
    return {
        order: (product, int(pieces), None if amount is None else Decimal(str(amount)))
        for order, product, pieces, amount in rows
    }
