"""Questions to a schema of views: one read-only transaction for the position and the rows."""

from __future__ import annotations

import psycopg

from headrace.model.kinds import Choice, Digits, Field, Plain
from headrace.views.asking import Ask, Asker
from headrace.views.errors import QueryTimedOut, QuestionRefused
from headrace.views.position import Shape, Standing
from headrace.views.postgres.catalog import Catalog
from headrace.views.postgres.columns import column_type, plain_row, quoted
from headrace.views.postgres.session import LOOKER, PostgresSession
from headrace.views.postgres.table import PostgresTable
from headrace.views.question import Asked, Question, key_is
from headrace.views.rows import Value
from headrace.views.sql_condition import SqlColumn, order_sql, where_sql
from headrace.views.store import Part

__all__ = ["PostgresAsker"]


class PostgresAsker(Asker):
    def __init__(self, url: str, schema: str) -> None:
        self._session = PostgresSession(url, schema, LOOKER, {"default_transaction_read_only": "on"})
        self._catalog = Catalog(self._session)
        self.where = self._session.where

    def is_made(self) -> bool:
        """Whether a follower has been here."""
        return self._catalog.is_there()

    def close(self) -> None:
        self._session.close()

    def standing(self, view: str) -> Standing | None:
        with self._session.reading() as connection:
            return self._catalog.standing(connection, view, Part.SERVING)

    def ask(self, view: str, ask: Ask, timeout_s: float) -> Asked | None:
        with self._session.reading() as connection:
            connection.execute(
                "SELECT set_config('statement_timeout', %s, true)", [str(max(1, int(timeout_s * 1_000)))]
            )
            found = self._catalog.found(connection, view, Part.SERVING)
            if found is None:
                return None
            name, standing = found
            question = ask(standing.shape)
            if question.words:
                raise QuestionRefused(
                    f"view {view!r} has no full-text index: its store is {self.where}",
                    hint="keep it in one beside: app.view(..., store=Search())",
                )
            table = PostgresTable(self._session.schema, name, standing.shape)
            statement, values = _statement(table, standing.shape, question)
            try:
                rows = connection.execute(statement, values).fetchall()
            except psycopg.errors.QueryCanceled as error:
                raise QueryTimedOut(timeout_s) from error
        plain = [*map(plain_row(standing.shape), rows)]
        return Asked(standing, question, plain[: question.limit], len(plain) > question.limit)


def _statement(table: PostgresTable, shape: Shape, question: Question) -> tuple[str, list[Value]]:
    fields = {one.name: one for one in shape.fields}

    def column(name: str) -> SqlColumn:
        return _column(fields[name])

    condition = question.where if question.key is None else key_is(shape, question.key)
    where, values = where_sql(condition, column)
    for one in values:
        if isinstance(one, str) and "\0" in one:
            raise QuestionRefused("a text with a NUL is in no row: PostgreSQL cannot hold it")
    order = order_sql(question.order, column, nulls=True)
    ordered = f" ORDER BY {order}" if order else ""
    # A name may have a percent sign, which is the driver's sign for a parameter.
    select = table.select.replace("%", "%%")
    return f"{select} t WHERE {where}{ordered} LIMIT {int(question.limit) + 1}", values


def _column(field: Field) -> SqlColumn:
    # By the table's name: ORDER BY takes a bare one for what is selected, which is text for exact numbers.
    name = f"t.{quoted(field.name)}".replace("%", "%%")
    match field.kind:
        case Plain("text") | Choice():
            return SqlColumn(name, f'{name} COLLATE "C"', "%s::text")
        case Plain() | Digits():
            # Of an exact number as many digits as there are: the column's own would round it.
            kind = "numeric" if isinstance(field.kind, Digits) else column_type(field)
            return SqlColumn(name, name, f"%s::{kind}")
    return SqlColumn(name, f"{name}::text", "%s::text")
