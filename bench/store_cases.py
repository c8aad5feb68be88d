"""The stores that ``bench.stores`` measures: how each is opened, and how it would be filled without a follower. To add
one, write its case and name it in ``CASES``.
"""

from __future__ import annotations

import contextlib
import sqlite3
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path

from headrace.model.kinds import Digits, Field, Plain
from headrace.views.position import Shape
from headrace.views.rows import Row
from headrace.views.store import Store

__all__ = ["CASES", "SHAPE", "VIEW", "StoreCase"]

SHAPE = Shape(
    (
        Field("order_id", Plain("text"), False),
        Field("customer", Plain("text"), True),
        Field("amount", Plain("int"), True),
        Field("share", Plain("float"), True),
        Field("at", Plain("time"), True),
        Field("price", Digits(), True),
        Field("paid", Plain("bool"), True),
        Field("note", Plain("text"), True),
    ),
    ("order_id",),
)
VIEW = "orders"


class StoreCase(ABC):
    """One place, empty at first."""

    peer: str
    """What the bulk load is, for a reader of the results."""

    def __init__(self, home: Path) -> None:
        self.home = home

    @abstractmethod
    def open(self) -> Store: ...

    @abstractmethod
    def prepare(self) -> None:
        """The table that a follower would have made, empty."""

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

    def open(self) -> Store:
        from headrace.views.sqlite import SqliteStore

        return SqliteStore(self._path, VIEW)

    def prepare(self) -> None:
        from headrace.views.sqlite_table import SqliteTable

        with contextlib.closing(sqlite3.connect(self._path)) as connection:
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute(SqliteTable(VIEW, SHAPE).create)

    def load(self, rows: Sequence[Row]) -> None:
        marks = ", ".join("?" * len(SHAPE.fields))
        with contextlib.closing(sqlite3.connect(self._path)) as connection, connection:
            connection.execute("PRAGMA synchronous = NORMAL")
            connection.executemany(f"INSERT INTO {VIEW} VALUES ({marks})", rows)

    def count(self) -> int:
        with contextlib.closing(sqlite3.connect(self._path)) as connection:
            return int(connection.execute(f"SELECT count(*) FROM {VIEW}").fetchone()[0])

    def close(self) -> None:
        """The folder is all there is."""


class PostgresCase(StoreCase):
    peer = "psycopg's COPY into the same table, one transaction"

    def __init__(self, home: Path) -> None:
        from tests.support.postgres import shared_server

        super().__init__(home)
        self._server = shared_server()
        self._database = self._server.database()
        self._url = self._server.url(self._database)

    def open(self) -> Store:
        from headrace.views.postgres.store import PostgresStore

        return PostgresStore(self._url, "public", VIEW)

    def prepare(self) -> None:
        from headrace.views.postgres.table import PostgresTable

        self._server.execute(PostgresTable("public", VIEW, SHAPE).create, self._database)

    def load(self, rows: Sequence[Row]) -> None:
        import psycopg

        with psycopg.connect(self._url) as connection:
            connection.execute("SET synchronous_commit = off")
            with connection.cursor().copy(f"COPY {VIEW} FROM STDIN") as copy:
                for row in rows:
                    copy.write_row(row)

    def count(self) -> int:
        ((found,),) = self._server.execute(f"SELECT count(*) FROM {VIEW}", self._database)
        return int(found)

    def close(self) -> None:
        self._server.drop(self._database)


class RedisCase(StoreCase):
    peer = "redis-py: pipelined HSETs of 500 rows of JSON each, no transaction"

    def __init__(self, home: Path) -> None:
        from tests.support.redis import fresh_database, shared

        super().__init__(home)
        database = fresh_database()
        self._url = f"{shared().url}?db={database}"
        self._client = shared().client(database)
        self._client.flushdb()

    def open(self) -> Store:
        from headrace.views.redis.store import RedisStore

        return RedisStore(self._url, "shop:", VIEW)

    def prepare(self) -> None:
        """There is nothing to make."""

    def load(self, rows: Sequence[Row]) -> None:
        import msgspec

        encode, names = msgspec.json.Encoder().encode, SHAPE.names
        pipe = self._client.pipeline(transaction=False)
        for begin in range(0, len(rows), 500):
            words: list[str | bytes] = []
            for row in rows[begin : begin + 500]:
                words += (str(row[0]), encode(dict(zip(names, row, strict=True))))
            pipe.execute_command("HSET", f"shop:{VIEW}", *words)
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

    def open(self) -> Store:
        from headrace.views.search.store import SearchStore

        return SearchStore(self.home / "shop.search", VIEW)

    def prepare(self) -> None:
        (self.home / "bulk").mkdir()

    def load(self, rows: Sequence[Row]) -> None:
        import tantivy

        from headrace.views.search.fields import TOKENIZER, Documents, analyzer, searched_of

        documents = Documents(SHAPE, searched_of(VIEW, SHAPE, ()))
        index = tantivy.Index(documents.schema(), str(self.home / "bulk"))
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
        from headrace.views.search.reading import SearchReader

        return SearchReader(self.home / "shop.search").count(VIEW)

    def close(self) -> None:
        """The folder is all there is."""


class DeltaCase(StoreCase):
    peer = "write_deltalake of all rows, one commit"

    def open(self) -> Store:
        from headrace.views.delta.store import DeltaStore

        return DeltaStore(self.home, VIEW)

    def prepare(self) -> None:
        """A table is made by its first commit."""

    def load(self, rows: Sequence[Row]) -> None:
        from deltalake import write_deltalake

        from headrace.views.delta.columns import GONE, Columns

        write_deltalake(str(self.home / VIEW), Columns(SHAPE).changes(rows, ()).drop_columns([GONE]))

    def count(self) -> int:
        from deltalake import DeltaTable

        return int(DeltaTable(str(self.home / VIEW)).count())

    def close(self) -> None:
        """The folder is all there is."""


CASES: dict[str, type[StoreCase]] = {
    "sqlite": SqliteCase,
    "postgres": PostgresCase,
    "redis": RedisCase,
    "search": SearchCase,
    "delta": DeltaCase,
}
