"""Arrow reads of a SQLite file, in one read transaction."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator
from pathlib import Path

from headrace.model.kinds import Field
from headrace.stores.arrow import ArrowRows, Deadline, TableScan, batches_of
from headrace.stores.position import ViewSchema, ViewState
from headrace.stores.reader import no_text_index
from headrace.stores.rows import Row
from headrace.stores.sql_condition import SqlColumn, where_sql
from headrace.stores.sqlite.errors import translate_errors
from headrace.stores.sqlite.layout import APPLICATION_ID, quoted, read_state
from headrace.stores.sqlite.reader import connect_read_only
from headrace.stores.writer import Part

__all__ = ["SqliteArrowReader", "sqlite_arrow_reader"]

_STEPS_PER_CLOCK_READ = 20_000
"""Instructions of SQLite's virtual machine between two reads of the clock."""
_ROWS_PER_FETCH = 2_000
_DEPTH_MAX = 900


class SqliteArrowReader:
    def __init__(self, connection: sqlite3.Connection, path: Path) -> None:
        self._connection = connection
        self._path = path

    def state(self, view: str) -> ViewState | None:
        (application_id,) = self._connection.execute("PRAGMA application_id").fetchone()
        return read_state(self._connection, view, Part.SERVING) if application_id == APPLICATION_ID else None

    def read(self, view: str, scan: TableScan, words: str) -> ArrowRows | None:
        if words:
            raise no_text_index(view, str(self._path))
        state = self.state(view)
        if state is None:
            return None
        fields = [state.schema.fields[index] for index in scan.columns]
        return ArrowRows(state, batches_of(fields, self._rows(view, state.schema, fields, scan)))

    def _rows(self, view: str, schema: ViewSchema, fields: list[Field], scan: TableScan) -> Iterator[Row]:
        columns = {name: SqlColumn(quoted(name), quoted(name), "?") for name in schema.names}
        where, values = where_sql(scan.where, columns.__getitem__)
        names = ", ".join(quoted(field.name) for field in fields)
        cursor = self._connection.execute(f"SELECT {names} FROM {quoted(view)} WHERE {where}", values)  # noqa: S608
        while rows := cursor.fetchmany(_ROWS_PER_FETCH):
            yield from rows


@contextlib.contextmanager
def sqlite_arrow_reader(path: Path, remaining_s: Deadline) -> Iterator[SqliteArrowReader]:
    with translate_errors(path), contextlib.closing(connect_read_only(path)) as connection:
        connection.setlimit(sqlite3.SQLITE_LIMIT_EXPR_DEPTH, _DEPTH_MAX)
        connection.set_progress_handler(lambda: int(remaining_s() <= 0), _STEPS_PER_CLOCK_READ)
        connection.execute("BEGIN")
        yield SqliteArrowReader(connection, path)
