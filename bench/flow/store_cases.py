"""The stores of the benchmark ``stores``. Each case opens its store, and can bulk-load it without a follower.

A new store needs a case here and an entry in ``CASES``.
"""

from __future__ import annotations

import contextlib
import sqlite3
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path

from headrace.model.kinds import Digits, Field, Scalar
from headrace.stores.position import ViewSchema
from headrace.stores.rows import Row
from headrace.stores.writer import StoreWriter

__all__ = ["CASES", "SCHEMA", "VIEW", "StoreCase"]

SCHEMA = ViewSchema(
    (
        Field("order_id", Scalar("text"), False),
        Field("customer", Scalar("text"), True),
        Field("amount", Scalar("int"), True),
        Field("share", Scalar("float"), True),
        Field("at", Scalar("time"), True),
        Field("price", Digits(), True),
        Field("paid", Scalar("bool"), True),
        Field("note", Scalar("text"), True),
    ),
    ("order_id",),
)
VIEW = "orders"


class StoreCase(ABC):
    """One empty store."""

    peer: str
    """The name, in the results, of the bulk load that the follower is compared with."""

    def __init__(self, home: Path) -> None:
        self.home = home

    @abstractmethod
    def open(self) -> StoreWriter: ...

    @abstractmethod
    def prepare(self) -> None:
        """Create the empty table that a follower would have created."""

    @abstractmethod
    def load(self, rows: Sequence[Row]) -> None: ...

    @abstractmethod
    def count(self) -> int: ...

    @abstractmethod
    def close(self) -> None: ...


class SqliteCase(StoreCase):
    peer = "executemany into the same table, one transaction"

    def __init__(self, home: Path) -> None:
        super().__init__(home)
        self._path = home / "shop.db"

    def open(self) -> StoreWriter:
        from headrace.stores.sqlite.writer import SqliteWriter

        return SqliteWriter(self._path, VIEW)

    def prepare(self) -> None:
        from headrace.stores.sqlite.layout import SqliteTable

        with contextlib.closing(sqlite3.connect(self._path)) as connection:
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute(SqliteTable(VIEW, SCHEMA).create)

    def load(self, rows: Sequence[Row]) -> None:
        marks = ", ".join("?" * len(SCHEMA.fields))
        with contextlib.closing(sqlite3.connect(self._path)) as connection, connection:
            connection.execute("PRAGMA synchronous = NORMAL")
            connection.executemany(f"INSERT INTO {VIEW} VALUES ({marks})", rows)

    def count(self) -> int:
        with contextlib.closing(sqlite3.connect(self._path)) as connection:
            return int(connection.execute(f"SELECT count(*) FROM {VIEW}").fetchone()[0])

    def close(self) -> None:
        """Everything is in the folder; nothing to remove."""


class PostgresCase(StoreCase):
    peer = "psycopg's COPY into the same table, one transaction"

    def __init__(self, home: Path) -> None:
        from faults.servers.postgres import shared_server

        super().__init__(home)
        self._server = shared_server()
        self._database = self._server.database()
        self._url = self._server.url(self._database)

    def open(self) -> StoreWriter:
        from headrace.stores.postgres.writer import PostgresWriter

        return PostgresWriter(self._url, "public", VIEW)

    def prepare(self) -> None:
        from headrace.stores.postgres.table import PostgresTable

        self._server.execute(PostgresTable("public", VIEW, SCHEMA).create, self._database)

    def load(self, rows: Sequence[Row]) -> None:
        import psycopg

        with psycopg.connect(self._url) as connection:
            connection.execute("SET synchronous_commit = off")
            with connection.cursor().copy(f"COPY {VIEW} FROM STDIN") as copy:
                for row in rows:
                    copy.write_row(row)

    def count(self) -> int:
        ((count,),) = self._server.execute(f"SELECT count(*) FROM {VIEW}", self._database)
        return int(count)

    def close(self) -> None:
        self._server.drop(self._database)


class RedisCase(StoreCase):
    peer = "redis-py: pipelined HSETs of 500 rows of JSON each, no transaction"

    def __init__(self, home: Path) -> None:
        from faults.servers.redis import fresh_database, shared

        super().__init__(home)
        database = fresh_database()
        self._url = f"{shared().url}?db={database}"
        self._client = shared().client(database)
        self._client.flushdb()

    def open(self) -> StoreWriter:
        from headrace.stores.redis.writer import RedisWriter

        return RedisWriter(self._url, "shop:", VIEW)

    def prepare(self) -> None:
        """Nothing to create."""

    def load(self, rows: Sequence[Row]) -> None:
        import msgspec

        encode, names = msgspec.json.Encoder().encode, SCHEMA.names
        pipe = self._client.pipeline(transaction=False)
        for begin in range(0, len(rows), 500):
            arguments: list[str | bytes] = []
            for row in rows[begin : begin + 500]:
                arguments += (str(row[0]), encode(dict(zip(names, row, strict=True))))
            pipe.execute_command("HSET", f"shop:{VIEW}", *arguments)
            if len(pipe) >= 20:
                pipe.execute()
        pipe.execute()

    def count(self) -> int:
        return int(self._client.hlen(f"shop:{VIEW}"))

    def close(self) -> None:
        self._client.flushdb()
        self._client.close()


class SearchCase(StoreCase):
    peer = "tantivy's writer, one thread and one commit, the same documents"

    def open(self) -> StoreWriter:
        from headrace.stores.search.writer import SearchWriter

        return SearchWriter(self.home / "shop.search", VIEW)

    def prepare(self) -> None:
        (self.home / "bulk").mkdir()

    def load(self, rows: Sequence[Row]) -> None:
        import tantivy

        from headrace.stores.search.layout import TOKENIZER, Documents, analyzer, searched_columns

        documents = Documents(SCHEMA, searched_columns(VIEW, SCHEMA, ()))
        index = tantivy.Index(documents.index_schema(), str(self.home / "bulk"))
        index.register_tokenizer(TOKENIZER, analyzer())
        writer = index.writer(64_000_000, 1)
        for row in rows:
            writer.add_document(documents.document(row)[1])
        writer.commit()
        writer.wait_merging_threads()

    def count(self) -> int:
        import tantivy

        if (self.home / "bulk").exists():
            return int(tantivy.Index.open(str(self.home / "bulk")).searcher().num_docs)
        from headrace.stores.search.reader import SearchReader

        return SearchReader(self.home / "shop.search").count(VIEW)

    def close(self) -> None:
        """Everything is in the folder; nothing to remove."""


class DeltaCase(StoreCase):
    peer = "write_deltalake of all rows, one commit"

    def open(self) -> StoreWriter:
        from headrace.stores.delta.writer import DeltaWriter

        return DeltaWriter(self.home, VIEW)

    def prepare(self) -> None:
        """Create nothing, because the first commit creates the table."""

    def load(self, rows: Sequence[Row]) -> None:
        from deltalake import write_deltalake

        from headrace.stores.delta.layout import DELETED, Columns

        write_deltalake(str(self.home / VIEW), Columns(SCHEMA).changes(rows, ()).drop_columns([DELETED]))

    def count(self) -> int:
        from deltalake import DeltaTable

        return int(DeltaTable(str(self.home / VIEW)).count())

    def close(self) -> None:
        """Everything is in the folder; nothing to remove."""


CASES: dict[str, type[StoreCase]] = {
    "sqlite": SqliteCase,
    "postgres": PostgresCase,
    "redis": RedisCase,
    "search": SearchCase,
    "delta": DeltaCase,
}
