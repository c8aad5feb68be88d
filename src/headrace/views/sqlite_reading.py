"""Reading a SQLite file of views, and nothing else: one statement, no writes, no other files, within a time.

The connection is read-only, and an authorizer lets nothing pass but reading: no PRAGMA, no ATTACH. What runs for too
long is stopped.
"""

from __future__ import annotations

import contextlib
import sqlite3
import urllib.parse
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import msgspec

from headrace.clock import Clock, SystemClock
from headrace.views.errors import QueryFailed, StoreForeign, StoreUnusable
from headrace.views.position import Shape
from headrace.views.reader import Known, Reader
from headrace.views.rows import Row
from headrace.views.sqlite_file import APPLICATION_ID, told_as
from headrace.views.sqlite_table import quoted
from headrace.views.store import Part

__all__ = ["SqliteReader"]

_ALLOWED = {
    sqlite3.SQLITE_SELECT,
    sqlite3.SQLITE_READ,
    sqlite3.SQLITE_FUNCTION,
    sqlite3.SQLITE_RECURSIVE,
}
_STEPS = 10_000
_AT_ONCE = 500


class SqliteReader(Reader):
    def __init__(self, path: Path, clock: Clock | None = None) -> None:
        self.path = path
        self.where = str(path)
        self._clock = clock or SystemClock()
        if not path.is_file():
            raise StoreUnusable(
                f"there is no file {path}", hint="name another, or build it: headrace view follow APP"
            )
        with told_as(path):
            address = f"file:{urllib.parse.quote(str(path))}?mode=ro"
            self._connection = sqlite3.connect(address, uri=True, isolation_level=None)
            try:
                # In one statement: a follower may be making the file at this moment.
                application, things = self._connection.execute(
                    "SELECT (SELECT application_id FROM pragma_application_id), (SELECT count(*) FROM sqlite_master)"
                ).fetchone()
                if application != APPLICATION_ID and (application or things):
                    raise StoreForeign(
                        f"{path} is a SQLite file that no follower made", hint="use sqlite3 for it"
                    )
                self.is_made = application == APPLICATION_ID
                """False for a file with nothing in it, as one is that is just being made."""
            except BaseException:
                self._connection.close()
                raise

    def close(self) -> None:
        self._connection.close()

    def known(self) -> list[Known]:
        if not self.is_made:
            return []
        with told_as(self.path):
            # A file that no follower of this release has opened yet is without the last one.
            new = self._connection.execute(
                "SELECT 1 FROM pragma_table_info('_headrace_views') WHERE name = 'sources'"
            ).fetchone()
            last = "sources" if new else "'{}'"
            found = self._connection.execute(
                "SELECT view, part, topic, generation, batch, offsets, dead, stored_ms, reason, shape,"  # noqa: S608
                f" {last} FROM _headrace_views ORDER BY view, part DESC"
            ).fetchall()
        return [
            Known(
                *(view, Part(part), topic, generation, batch),
                msgspec.json.decode(offsets, type=dict[int, int]),
                *(dead, stored_ms, reason, Shape.told(shape), msgspec.json.decode(sources)),
            )
            for view, part, topic, generation, batch, offsets, dead, stored_ms, reason, shape, sources in found
        ]

    def count(self, view: str) -> int:
        with told_as(self.path):
            (rows,) = self._connection.execute(f"SELECT count(*) FROM {quoted(view)}").fetchone()  # noqa: S608
            return int(rows)

    def reading(self, view: str, timeout_s: float) -> AbstractContextManager[tuple[list[str], Iterator[Row]]]:
        return self.query(f"SELECT * FROM {quoted(view)}", timeout_s)  # noqa: S608

    @contextlib.contextmanager
    def query(self, sql: str, timeout_s: float) -> Iterator[tuple[list[str], Iterator[Row]]]:
        """The names of the columns, each once, and the rows, which are read while they are asked for."""
        deadline = self._clock.steady() + timeout_s
        connection = self._connection
        connection.set_progress_handler(lambda: int(self._clock.steady() > deadline), _STEPS)
        connection.set_authorizer(_authorize)
        try:
            try:
                found = connection.execute(sql)
                if found.description is None:
                    raise QueryFailed("the statement reads nothing", hint="write a SELECT")
                yield _names(found), _rows(found)
            except (sqlite3.Error, sqlite3.Warning) as error:
                raise self._failed(error, timeout_s) from error
        finally:
            connection.set_authorizer(None)
            connection.set_progress_handler(None, 0)

    def _failed(self, error: Exception, timeout_s: float) -> QueryFailed:
        code = getattr(error, "sqlite_errorcode", 0)
        if code == sqlite3.SQLITE_INTERRUPT:
            return QueryFailed(
                f"the query was stopped after {timeout_s:g} s",
                hint="give it more with --timeout, or an index",
            )
        if code == sqlite3.SQLITE_AUTH or "not authorized" in str(error):
            return QueryFailed(f"only reading is allowed: {error}", hint="write one SELECT over the views")
        return QueryFailed(
            f"SQLite says: {error}", hint="the views are tables; their columns: headrace view describe"
        )


def _authorize(action: int, *_: str | None) -> int:
    return sqlite3.SQLITE_OK if action in _ALLOWED else sqlite3.SQLITE_DENY


def _names(found: sqlite3.Cursor) -> list[str]:
    names: list[str] = []
    for name, *_ in found.description:
        unique, number = str(name), 2
        while unique in names:
            unique, number = f"{name}_{number}", number + 1
        names.append(unique)
    return names


def _rows(found: sqlite3.Cursor) -> Iterator[Row]:
    while some := found.fetchmany(_AT_ONCE):
        yield from some
