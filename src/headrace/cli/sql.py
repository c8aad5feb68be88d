"""Runs SELECT statements over views for commands. The dialect, the checks and the limits are those of the server's SQL:
a worker process runs the statement in DuckDB, over copies of the rows.
"""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from headrace.app import App
from headrace.cli.errors import QueryRefused, UsageError, ViewUnknown
from headrace.errors import HeadraceError
from headrace.model.declarations import View
from headrace.serve.sql.messages import ParseRequest, QueryRequest, Source, TableRef
from headrace.serve.sql.pool import SqlPool
from headrace.settings import ServeSettings
from headrace.stores.registry import StoreLocation, location_of

if TYPE_CHECKING:
    from headrace.stores.sqlite.reader import SqliteReader

__all__ = ["QueryRows", "SqlResult", "SqlRunner", "Watch", "app_sources", "file_sources"]

_BYTES_MAX = 256 << 20
_WATCH_S = 10.0
"""Timeout of a statement of ``--watch``."""
_WATCH_ROWS = 10
_WATCH_PAUSE_S = 0.5
_WATCH_SHARE = 10
"""A statement of ``--watch`` runs for at most one part in this many of the time."""
_JOIN_S = 0.2


@dataclass(frozen=True, slots=True)
class SqlResult:
    """Decimals are texts with all their digits. All other values are as in the server's JSON."""

    columns: list[str]
    rows: list[tuple[object, ...]]


class Sources:
    """The views that a statement can read, by name. ``source`` returns the view that serves a name."""

    def __init__(self, where: str, names: Sequence[str], source: Callable[[str], Source]) -> None:
        self._where = where
        self._names = names
        self._source = source

    def find(self, table: TableRef) -> Source | None:
        """Return the view with this name, in any case, because SQL ignores case. None if no such view exists."""
        matching = [name for name in self._names if name.lower() == table.name.lower()]
        if len(matching) > 1 and table.name not in matching:
            raise UsageError(
                f"{table.name!r} is ambiguous: {' or '.join(matching)}", hint="write it in double quotes"
            )
        if not matching:
            return None
        source = self._source(table.name if table.name in matching else matching[0])
        return msgspec.structs.replace(source, name=table.name, words=table.words)

    def unknown(self, table: TableRef) -> ViewUnknown:
        return ViewUnknown(self._where, table.name, list(self._names))


def app_sources(app: App, data: Path, serving: Callable[[str], str]) -> Sources:
    """``serving`` returns the name of the view that serves readers of a name."""
    views: dict[str, View] = {view.name: view for view in (*app.views, *app.computed)}

    def source(name: str) -> Source:
        view = views[serving(name)]
        location = location_of(view, app.name, data)
        if location is None:
            raise QueryRefused(
                f"view {view.name!r} is computed on read, and SQL needs a store",
                hint="query its rows over HTTP, or set a store: app.view(..., store=SQLite())",
            )
        return Source(name, view.name, location)

    return Sources(app.name, list(views), source)


def file_sources(reader: SqliteReader) -> Sources:
    """Return the views of a SQLite file."""
    location = StoreLocation("sqlite", str(reader.path))
    names = [*dict.fromkeys(stored.view for stored in reader.views())]
    return Sources(reader.where, names, lambda name: Source(name, name, location))


class SqlRunner:
    """Use it in one thread. The worker process starts with the first statement."""

    def __init__(self, sources: Sources, limits: ServeSettings) -> None:
        self._sources = sources
        self._limits = limits
        self._loop = asyncio.new_event_loop()
        self._pool = SqlPool(1, 1, _BYTES_MAX, 100)

    def close(self) -> None:
        self._loop.run_until_complete(self._pool.close())
        self._loop.close()

    def run(self, sql: str, timeout_s: float) -> SqlResult:
        return self._loop.run_until_complete(self._run(sql, timeout_s))

    async def _run(self, sql: str, timeout_s: float) -> SqlResult:
        parsed = await self._pool.parse(ParseRequest(sql), "")
        tables = [*(TableRef(name) for name in parsed.names), *parsed.words]
        tables += [TableRef(search.name) for search in parsed.words if search.name not in parsed.names]
        sources = []
        for table in tables:
            source = self._sources.find(table)
            if source is not None:
                sources.append(source)
            elif table.words or table.name.lower() not in map(str.lower, parsed.bound):
                raise self._sources.unknown(table)
        limits = self._limits
        request = QueryRequest(
            *(sql, [], sources, timeout_s),
            *(limits.sql_rows_max, _BYTES_MAX, limits.sql_memory_mb << 20),
        )
        response = await self._pool.answer(request, "")
        rows = msgspec.json.decode(response.body, type=list[list[msgspec.Raw]])
        types = [column.type for column in response.columns]
        return SqlResult(
            _unique([column.name for column in response.columns]),
            [tuple(map(_value, types, row)) for row in rows],
        )


def _value(kind: str, raw: msgspec.Raw) -> object:
    text = bytes(raw).decode()
    return text if kind.startswith("DECIMAL") and text != "null" else json.loads(text)


def _unique(names: Sequence[str]) -> list[str]:
    unique: list[str] = []
    for name in names:
        candidate, number = name, 2
        while candidate in unique:
            candidate, number = f"{name}_{number}", number + 1
        unique.append(candidate)
    return unique


@dataclass(frozen=True, slots=True)
class QueryRows:
    """The first rows of a statement of ``--watch``."""

    sql: str
    columns: list[str] = field(default_factory=list)
    rows: list[tuple[object, ...]] = field(default_factory=list)
    error: str = ""
    """The error, if the statement failed."""


class Watch:
    """Runs the statements of ``--watch`` repeatedly, in a thread, so that a slow one does not delay the display."""

    def __init__(self, runner: Callable[[], SqlRunner], statements: Sequence[str]) -> None:
        self._runner = runner
        self._rows = {sql: QueryRows(sql) for sql in statements}
        self._changed = threading.Condition()
        self._rounds = 0
        self._wanted_rounds = 0
        self._is_stopping = False
        self._thread = threading.Thread(target=self._run, name="watch", daemon=True)
        if statements:
            self._thread.start()

    def rows(self) -> list[QueryRows]:
        """Return the newest result of each statement."""
        return list(self._rows.values())

    def refresh(self) -> None:
        """Run each statement once more, and wait for the results."""
        if not self._rows:
            return
        with self._changed:
            # The current round may have read the views already.
            wanted = self._wanted_rounds = self._rounds + 2
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._rounds >= wanted, 2 * _WATCH_S)

    def close(self) -> None:
        with self._changed:
            self._is_stopping = True
            self._changed.notify_all()
        if self._rows:
            self._thread.join(_JOIN_S)

    def _run(self) -> None:
        runner = self._runner()
        try:
            while not self._is_stopping:
                began_s = time.monotonic()
                for sql in self._rows:
                    self._rows[sql] = _query_rows(runner, sql)
                pause_s = max(_WATCH_PAUSE_S, (_WATCH_SHARE - 1) * (time.monotonic() - began_s))
                with self._changed:
                    self._rounds += 1
                    self._changed.notify_all()
                    self._changed.wait_for(
                        lambda: self._is_stopping or self._wanted_rounds > self._rounds, pause_s
                    )
        finally:
            runner.close()


def _query_rows(runner: SqlRunner, sql: str) -> QueryRows:
    try:
        result = runner.run(sql, _WATCH_S)
    except HeadraceError as error:
        return QueryRows(sql, error=error.message)
    return QueryRows(sql, result.columns, result.rows[:_WATCH_ROWS])
