"""Reads views of a PostgreSQL schema. It reads the position and the rows in the same read-only transaction."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import psycopg

from headrace.model.kinds import Digits, Enum, Field, Scalar
from headrace.stores.errors import QueryFailed, QueryRefused, QueryTimedOut, StoreUnusable
from headrace.stores.position import ViewSchema, ViewState
from headrace.stores.postgres.errors import translate_errors
from headrace.stores.postgres.layout import Catalog
from headrace.stores.postgres.session import PostgresSession
from headrace.stores.postgres.table import PostgresTable, column_type, quoted, row_decoder
from headrace.stores.query import Query, QueryResult, key_equals
from headrace.stores.reader import QueryBuilder, StoredView, StoreReader, no_text_index
from headrace.stores.rows import Row, Value
from headrace.stores.sql_condition import SqlColumn, order_sql, where_sql
from headrace.stores.writer import Part

__all__ = ["PostgresReader", "check_schema", "set_statement_timeout"]


class PostgresReader(StoreReader):
    def __init__(self, url: str, schema_name: str) -> None:
        self._session = PostgresSession.for_reading(url, schema_name)
        self._catalog = Catalog(self._session)
        self.where = self._session.where

    def is_created(self) -> bool:
        """Return whether a follower has created its tables in the schema."""
        return self._catalog.exists()

    def close(self) -> None:
        self._session.close()

    # State

    def state(self, view: str) -> ViewState | None:
        with self._session.reading() as connection:
            return self._catalog.state(connection, view, Part.SERVING)

    def views(self) -> list[StoredView]:
        with translate_errors(self.where):
            return [StoredView(*result) for result in self._catalog.views(self._session.connection)]

    def count(self, view: str) -> int:
        with translate_errors(self.where):
            result = self._session.connection.execute(
                f"SELECT count(*) FROM {self._table(view).full_name}"  # noqa: S608
            ).fetchone()
        return int(result[0]) if result else 0

    # Rows

    def query(self, view: str, build: QueryBuilder, timeout_s: float) -> QueryResult | None:
        with self._session.reading() as connection:
            self._catalog.lock_serving(connection, view, timeout_s)
            result = self._catalog.state_and_table(connection, view, Part.SERVING)
            if result is None:
                return None
            name, state = result
            query = build(state.schema)
            if query.words:
                raise no_text_index(view, self.where)
            table = PostgresTable(self._session.schema_name, name, state.schema)
            statement, values = _statement(table, state.schema, query)
            try:
                rows = connection.execute(statement, values).fetchall()
            except psycopg.errors.QueryCanceled as error:
                raise QueryTimedOut(timeout_s) from error
        decoded = [*map(row_decoder(state.schema), rows)]
        return QueryResult(state, query, decoded[: query.limit], len(decoded) > query.limit)

    @contextlib.contextmanager
    def scan(
        self, view: str, timeout_s: float, words: str | None = None
    ) -> Iterator[tuple[list[str], Iterator[Row]]]:
        if words is not None:
            raise no_text_index(view, self.where)
        with self._session.reading() as connection:
            self._catalog.lock_serving(connection, view, timeout_s)
            table = self._table(view)
            yield list(table.schema.names), self._scan(table, timeout_s)

    def _scan(self, table: PostgresTable, timeout_s: float) -> Iterator[Row]:
        try:
            yield from table.rows(self._session.connection)
        except psycopg.errors.QueryCanceled as error:
            raise QueryFailed(
                f"the query was stopped after {timeout_s:g} s", hint="raise --timeout, or use psql"
            ) from error

    def _table(self, view: str) -> PostgresTable:
        result = self._catalog.serving_table(self._session.connection, view)
        if result is None:
            raise QueryFailed(f"{self.where} does not serve view {view!r}")
        name, schema = result
        return PostgresTable(self._session.schema_name, name, schema)


def set_statement_timeout(connection: psycopg.Connection[Any], timeout_s: float) -> None:
    """Set the timeout of statements until the end of the transaction."""
    milliseconds = str(max(1, int(timeout_s * 1_000)))
    connection.execute("SELECT set_config('statement_timeout', %s, true)", [milliseconds])


def _statement(table: PostgresTable, schema: ViewSchema, query: Query) -> tuple[str, list[Value]]:
    fields = {field.name: field for field in schema.fields}

    def column(name: str) -> SqlColumn:
        return _column(fields[name])

    condition = query.where if query.key is None else key_equals(schema, query.key)
    where, values = where_sql(condition, column)
    for value in values:
        if isinstance(value, str) and "\0" in value:
            raise QueryRefused(
                "the query contains a text with a NUL character, which PostgreSQL does not support"
            )
    order = order_sql(query.order, column, nulls=True)
    order_by = f" ORDER BY {order}" if order else ""
    # Escape percent signs in column names, because the driver would read them as parameters.
    select = table.select.replace("%", "%%")
    return f"{select} t WHERE {where}{order_by} LIMIT {int(query.limit) + 1}", values


def _column(field: Field) -> SqlColumn:
    # Qualify the name. In ORDER BY, an unqualified name means the selected expression, which is text for decimals.
    name = f"t.{quoted(field.name)}".replace("%", "%%")
    match field.kind:
        case Scalar("text") | Enum():
            return SqlColumn(name, f'{name} COLLATE "C"', "%s::text")
        case Scalar() | Digits():
            # Use numeric without digits for decimals, because the type of the column would round the value.
            kind = "numeric" if isinstance(field.kind, Digits) else column_type(field)
            return SqlColumn(name, name, f"%s::{kind}")
    return SqlColumn(name, f"{name}::text", "%s::text")


def check_schema(url: str, schema_name: str) -> bool:
    """Return whether a follower has created its tables in the schema. Raise if a follower cannot use the schema.

    This does not change the database.
    """
    session = PostgresSession.for_reading(url, schema_name)
    with contextlib.closing(session):
        session.check_primary()
        with translate_errors(session.where):
            result = session.connection.execute(
                "SELECT current_user, has_database_privilege(current_database(), 'TEMPORARY'),"
                " has_database_privilege(current_database(), 'CREATE'), (SELECT"
                " has_schema_privilege(oid, 'USAGE') AND has_schema_privilege(oid, 'CREATE')"
                " FROM pg_namespace WHERE nspname = %s)",
                [schema_name],
            ).fetchone()
        assert result is not None
        role, may_use_temporary, may_create_schema, may_write = result
        if not may_use_temporary or not (may_create_schema if may_write is None else may_write):
            raise StoreUnusable(
                f"role {role} has no permission to write in {session.where}",
                hint=f"grant {role} USAGE and CREATE on schema {schema_name}, and TEMPORARY on the database",
            )
        return Catalog(session).exists()
