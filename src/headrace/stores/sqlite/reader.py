"""Reads views of a SQLite file. It reads the position and the rows in the same read transaction.

The connection is read-only. SQLite stops a statement after its deadline. Decimals are stored as text, and a custom
collation compares them by value. For all other types, SQLite's own order is correct.
"""

from __future__ import annotations

import contextlib
import sqlite3
import urllib.parse
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path

from headrace.clock import Clock, SystemClock
from headrace.model.kinds import Digits
from headrace.stores.errors import QueryFailed, QueryTimedOut, StoreForeign, StoreReplaced, StoreUnusable
from headrace.stores.position import ViewSchema, ViewState
from headrace.stores.query import Query, QueryResult
from headrace.stores.reader import QueryBuilder, StoredView, StoreReader, no_text_index
from headrace.stores.rows import Row
from headrace.stores.sql_condition import SqlColumn, order_sql, where_sql
from headrace.stores.sqlite.errors import translate_errors, translated
from headrace.stores.sqlite.layout import (
    APPLICATION_ID,
    SqliteTable,
    cached_table,
    identity_of,
    quoted,
    read_state,
    read_views,
)
from headrace.stores.writer import Part

__all__ = ["SqliteReader", "connect_read_only"]

_BUSY_S = 1.0
_STEPS_PER_CLOCK_READ = 5_000
"""Instructions of SQLite's virtual machine between two reads of the clock."""
_DEPTH_MAX = 500
_COLLATION = "headrace_digits"
_ROWS_PER_FETCH = 500


class SqliteReader(StoreReader):
    def __init__(self, path: Path, clock: Clock | None = None) -> None:
        self.path = path
        self.where = str(path)
        self._clock = clock or SystemClock()
        self._tables: dict[str, tuple[ViewSchema, SqliteTable]] = {}
        self._identity = identity_of(path)
        if self._identity is None or not path.is_file():
            raise StoreUnusable(
                f"file {path} does not exist",
                hint="choose another file, or build the view: headrace view follow APP",
            )
        with translate_errors(path):
            self._connection = connect_read_only(path)
            try:
                self._prepare()
            except BaseException:
                self._connection.close()
                raise

    def _prepare(self) -> None:
        # Use one statement, because a follower might create the tables at the same time.
        application_id, object_count = self._connection.execute(
            "SELECT (SELECT application_id FROM pragma_application_id), (SELECT count(*) FROM sqlite_master)"
        ).fetchone()
        if application_id != APPLICATION_ID and (application_id or object_count):
            raise StoreForeign(
                f"{self.path} is a SQLite file that no follower created",
                hint="use the program sqlite3 to read this file",
            )
        self.is_created = application_id == APPLICATION_ID
        """False if the file is empty, because a follower is about to create the tables."""
        self._connection.create_collation(_COLLATION, _compare_decimals)
        self._connection.setlimit(sqlite3.SQLITE_LIMIT_EXPR_DEPTH, _DEPTH_MAX)

    def close(self) -> None:
        self._connection.close()

    def _check_same_file(self) -> None:
        if identity_of(self.path) != self._identity:
            raise StoreReplaced(f"{self.path} was removed or replaced while it was open")

    # State

    def state(self, view: str) -> ViewState | None:
        self._check_same_file()
        with translate_errors(self.path):
            return read_state(self._connection, view, Part.SERVING)

    def views(self) -> list[StoredView]:
        if not self.is_created:
            return []
        with translate_errors(self.path):
            return [StoredView(*found) for found in read_views(self._connection)]

    def count(self, view: str) -> int:
        with translate_errors(self.path):
            (rows,) = self._connection.execute(f"SELECT count(*) FROM {quoted(view)}").fetchone()  # noqa: S608
            return int(rows)

    # Rows

    def query(self, view: str, build: QueryBuilder, timeout_s: float) -> QueryResult | None:
        with self._transaction(timeout_s) as connection:
            state = read_state(connection, view, Part.SERVING)
            if state is None:
                return None
            query = build(state.schema)
            if query.words:
                raise no_text_index(view, self.where)
            table = self._table(view, state.schema)
            rows = [*table.fetch(connection.execute(*_statement(table, state.schema, query)))]
        return QueryResult(state, query, rows[: query.limit], len(rows) > query.limit)

    def _table(self, view: str, schema: ViewSchema) -> SqliteTable:
        # Compare by identity, because equal schema texts are parsed to the same object.
        cached = self._tables.get(view)
        if cached is None or cached[0] is not schema:
            cached = self._tables[view] = (schema, cached_table(view, schema))
        return cached[1]

    @contextlib.contextmanager
    def _transaction(self, timeout_s: float) -> Iterator[sqlite3.Connection]:
        self._check_same_file()
        connection = self._connection
        try:
            self._set_deadline(timeout_s)
            connection.execute("BEGIN")
            try:
                yield connection
            finally:
                connection.set_progress_handler(None, 0)
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
        except sqlite3.Error as error:
            if getattr(error, "sqlite_errorcode", 0) == sqlite3.SQLITE_INTERRUPT:
                raise QueryTimedOut(timeout_s) from error
            raise translated(self.path, error) from error

    def _set_deadline(self, timeout_s: float) -> None:
        deadline = self._clock.steady() + timeout_s
        self._connection.set_progress_handler(
            lambda: int(self._clock.steady() > deadline), _STEPS_PER_CLOCK_READ
        )

    @contextlib.contextmanager
    def scan(
        self, view: str, timeout_s: float, words: str | None = None
    ) -> Iterator[tuple[list[str], Iterator[Row]]]:
        if words is not None:
            raise no_text_index(view, self.where)
        connection = self._connection
        self._set_deadline(timeout_s)
        try:
            cursor = connection.execute(f"SELECT * FROM {quoted(view)}")  # noqa: S608
            yield [str(column[0]) for column in cursor.description], _fetch(cursor)
        except sqlite3.Error as error:
            if getattr(error, "sqlite_errorcode", 0) == sqlite3.SQLITE_INTERRUPT:
                raise QueryFailed(
                    f"the query was stopped after {timeout_s:g} s", hint="raise --timeout"
                ) from error
            raise translated(self.path, error) from error
        finally:
            connection.set_progress_handler(None, 0)


def connect_read_only(path: Path) -> sqlite3.Connection:
    address = f"file:{urllib.parse.quote(str(path))}?mode=ro"
    connection = sqlite3.connect(
        address, timeout=_BUSY_S, uri=True, isolation_level=None, check_same_thread=False
    )
    connection.execute("PRAGMA query_only = ON")
    return connection


def _statement(table: SqliteTable, schema: ViewSchema, query: Query) -> tuple[str, list[object]]:
    if query.key is not None:
        return table.select_one, [*query.key]
    fields = {field.name: field for field in schema.fields}

    def column(name: str) -> SqlColumn:
        quoted_name = quoted(name)
        is_decimal = isinstance(fields[name].kind, Digits)
        return SqlColumn(
            quoted_name, f"{quoted_name} COLLATE {_COLLATION}" if is_decimal else quoted_name, "?"
        )

    where, values = where_sql(query.where, column)
    order = order_sql(query.order, column, nulls=False)
    order_by = f" ORDER BY {order}" if order else ""
    return f"{table.select} WHERE {where}{order_by} LIMIT ?", [*values, query.limit + 1]


def _compare_decimals(left: str, right: str) -> int:
    first, second = Decimal(left), Decimal(right)
    return (first > second) - (first < second)


def _fetch(cursor: sqlite3.Cursor) -> Iterator[Row]:
    while rows := cursor.fetchmany(_ROWS_PER_FETCH):
        yield from rows
