"""Views of one SQLite file, in one read transaction."""

from __future__ import annotations

import contextlib
import sqlite3
import urllib.parse
from collections.abc import Callable, Iterator
from pathlib import Path

from headrace.model.kinds import Field
from headrace.serve.sql.column_types import batches_of
from headrace.serve.sql.planning import Need
from headrace.serve.sql.reading import Read
from headrace.views.errors import QuestionRefused
from headrace.views.position import Shape, Standing
from headrace.views.rows import Row
from headrace.views.sql_condition import SqlColumn, where_sql
from headrace.views.sqlite import standing_in
from headrace.views.sqlite_file import APPLICATION_ID, told_as
from headrace.views.sqlite_table import quoted
from headrace.views.store import Part

__all__ = ["SqliteReading", "sqlite_reading"]

_BUSY_S = 1.0
_STEPS = 20_000
_AT_ONCE = 2_000
_DEPTH_MAX = 900


class SqliteReading:
    def __init__(self, connection: sqlite3.Connection, path: Path) -> None:
        self._connection = connection
        self._path = path

    def standing(self, view: str) -> Standing | None:
        (application,) = self._connection.execute("PRAGMA application_id").fetchone()
        return standing_in(self._connection, view, Part.SERVING) if application == APPLICATION_ID else None

    def read(self, view: str, need: Need, words: str) -> Read:
        standing = self.standing(view)
        assert standing is not None, view
        if words:
            raise no_index(view, str(self._path))
        fields = [standing.shape.fields[at] for at in need.columns]
        return Read(standing, batches_of(fields, self._rows(view, standing.shape, fields, need)))

    def _rows(self, view: str, shape: Shape, fields: list[Field], need: Need) -> Iterator[Row]:
        columns = {one.name: SqlColumn(quoted(one.name), quoted(one.name), "?") for one in shape.fields}
        where, values = where_sql(need.where, columns.__getitem__)
        names = ", ".join(quoted(one.name) for one in fields)
        found = self._connection.execute(f"SELECT {names} FROM {quoted(view)} WHERE {where}", values)  # noqa: S608
        while some := found.fetchmany(_AT_ONCE):
            yield from some


@contextlib.contextmanager
def sqlite_reading(path: Path, left: Callable[[], float]) -> Iterator[SqliteReading]:
    with told_as(path):
        address = f"file:{urllib.parse.quote(str(path))}?mode=ro"
        connection = sqlite3.connect(
            address, timeout=_BUSY_S, uri=True, isolation_level=None, check_same_thread=False
        )
        with contextlib.closing(connection):
            connection.execute("PRAGMA query_only = ON")
            connection.setlimit(sqlite3.SQLITE_LIMIT_EXPR_DEPTH, _DEPTH_MAX)
            connection.set_progress_handler(lambda: int(left() <= 0), _STEPS)
            connection.execute("BEGIN")
            yield SqliteReading(connection, path)


def no_index(view: str, where: str) -> QuestionRefused:
    return QuestionRefused(
        f"view {view!r} has no full-text index: its store is {where}",
        hint="keep it in one beside: app.view(..., store=Search())",
    )
