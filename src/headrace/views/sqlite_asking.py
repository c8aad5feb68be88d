"""Questions to a SQLite file of views: one read transaction for the position and the rows.

Exact numbers are text in a column, and are compared by a collation of ours; everything else SQLite sorts as we do.
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
from headrace.views.asking import Ask, Asker
from headrace.views.errors import QueryTimedOut, QuestionRefused, StoreForeign, StoreReplaced, StoreUnusable
from headrace.views.position import Shape, Standing
from headrace.views.question import Asked, Question
from headrace.views.sql_condition import SqlColumn, order_sql, where_sql
from headrace.views.sqlite import standing_in
from headrace.views.sqlite_file import APPLICATION_ID, identity_of, told_as
from headrace.views.sqlite_table import SqliteTable, quoted, sqlite_table
from headrace.views.store import Part

__all__ = ["SqliteAsker"]

_BUSY_S = 1.0
_STEPS = 5_000
_DEPTH_MAX = 500
_COLLATION = "headrace_digits"


class SqliteAsker(Asker):
    def __init__(self, path: Path, clock: Clock | None = None) -> None:
        self.path = path
        self.where = str(path)
        self._clock = clock or SystemClock()
        self._identity = identity_of(path)
        if self._identity is None or not path.is_file():
            raise StoreUnusable(
                f"there is no file {path}", hint="name another, or build it: headrace view follow APP"
            )
        with told_as(path):
            address = f"file:{urllib.parse.quote(str(path))}?mode=ro"
            self._connection = sqlite3.connect(
                address, timeout=_BUSY_S, uri=True, isolation_level=None, check_same_thread=False
            )
            try:
                self._settle()
            except BaseException:
                self._connection.close()
                raise

    def _settle(self) -> None:
        # In one statement: a follower may be making the file at this moment.
        application, things = self._connection.execute(
            "SELECT (SELECT application_id FROM pragma_application_id), (SELECT count(*) FROM sqlite_master)"
        ).fetchone()
        if application != APPLICATION_ID and (application or things):
            raise StoreForeign(f"{self.path} is a SQLite file that no follower made")
        self.is_made = application == APPLICATION_ID
        """False for a file with nothing in it, as one is that is just being made."""
        self._connection.execute("PRAGMA query_only = ON")
        self._connection.create_collation(_COLLATION, _compare_digits)
        self._connection.setlimit(sqlite3.SQLITE_LIMIT_EXPR_DEPTH, _DEPTH_MAX)

    def close(self) -> None:
        self._connection.close()

    def standing(self, view: str) -> Standing | None:
        self._expect_same_file()
        with told_as(self.path):
            return standing_in(self._connection, view, Part.SERVING)

    def ask(self, view: str, ask: Ask, timeout_s: float) -> Asked | None:
        with self._reading(timeout_s) as connection:
            standing = standing_in(connection, view, Part.SERVING)
            if standing is None:
                return None
            question = ask(standing.shape)
            if question.words:
                raise QuestionRefused(
                    f"view {view!r} has no full-text index: its store is {self.where}",
                    hint="keep it in one beside: app.view(..., store=Search())",
                )
            table = sqlite_table(view, standing.shape)
            found = [*table.found(connection.execute(*_statement(table, standing.shape, question)))]
        return Asked(standing, question, found[: question.limit], len(found) > question.limit)

    @contextlib.contextmanager
    def _reading(self, timeout_s: float) -> Iterator[sqlite3.Connection]:
        self._expect_same_file()
        deadline = self._clock.steady() + timeout_s
        connection = self._connection
        with told_as(self.path):
            connection.set_progress_handler(lambda: int(self._clock.steady() > deadline), _STEPS)
            connection.execute("BEGIN")
            try:
                yield connection
            except sqlite3.OperationalError as error:
                if getattr(error, "sqlite_errorcode", 0) == sqlite3.SQLITE_INTERRUPT:
                    raise QueryTimedOut(timeout_s) from error
                raise
            finally:
                connection.set_progress_handler(None, 0)
                if connection.in_transaction:
                    connection.execute("ROLLBACK")

    def _expect_same_file(self) -> None:
        if identity_of(self.path) != self._identity:
            raise StoreReplaced(f"{self.path} was removed or replaced while it was open")


def _statement(table: SqliteTable, shape: Shape, question: Question) -> tuple[str, list[object]]:
    if question.key is not None:
        return table.select_one, [*question.key]
    fields = {one.name: one for one in shape.fields}

    def column(name: str) -> SqlColumn:
        plain = quoted(name)
        exact = isinstance(fields[name].kind, Digits)
        return SqlColumn(plain, f"{plain} COLLATE {_COLLATION}" if exact else plain, "?")

    where, values = where_sql(question.where, column)
    order = order_sql(question.order, column, nulls=False)
    ordered = f" ORDER BY {order}" if order else ""
    return f"{table.select} WHERE {where}{ordered} LIMIT ?", [*values, question.limit + 1]


def _compare_digits(one: str, other: str) -> int:
    first, second = Decimal(one), Decimal(other)
    return (first > second) - (first < second)
