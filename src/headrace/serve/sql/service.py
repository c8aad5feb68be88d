"""Runs a statement for a caller: finds its views, checks permissions, waits for the position, returns the rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from headrace.model.declarations import View
from headrace.model.store import OnRead
from headrace.serve.errors import (
    InvalidPositionToken,
    NotAllowed,
    NotFound,
    ServeError,
    SqlRefused,
    TooBusy,
    Unavailable,
)
from headrace.serve.http.context import ServeContext
from headrace.serve.http.tokens import READ_VIEW, Caller
from headrace.serve.query.causality import Causality
from headrace.serve.query.position_token import PositionToken
from headrace.serve.query.position_waiter import PositionWaiter, position_timeout
from headrace.serve.query.views import Views
from headrace.serve.sql.messages import (
    ListedView,
    Parsed,
    ParseRequest,
    QueryRequest,
    QueryResponse,
    Source,
    TableRef,
)
from headrace.serve.sql.pool import SqlPool
from headrace.stores.errors import QueryRefused
from headrace.stores.position import Position
from headrace.stores.registry import location_of

__all__ = ["Parameter", "SqlService", "Statement"]

Parameter = None | bool | int | float | str | list[str | None]


class Statement(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    sql: str
    parameters: list[bool | int | float | str | None] = []


@dataclass(frozen=True, slots=True)
class ViewRef:
    """A table name in the statement, and the view that serves it."""

    name: str
    view: View
    words: str = ""


class SqlService:
    """Use it in one event loop. Other features share ``causality`` and ``waiter``."""

    def __init__(
        self,
        context: ServeContext,
        views: Views,
        causality: Causality,
        waiter: PositionWaiter,
        pool: SqlPool,
    ) -> None:
        self._context = context
        self._views = views
        self._causality = causality
        self._waiter = waiter
        self._pool = pool

    async def answer(
        self,
        caller: Caller,
        sql: str,
        parameters: Sequence[Parameter],
        result_format: str,
        token: PositionToken | None = None,
        deadline: float = 0.0,
        bytes_max: int | None = None,
        **wire: Any,
    ) -> QueryResponse:
        """Run a statement. ``wire`` has those fields of ``QueryRequest`` that only PostgreSQL's protocol uses."""
        context, limits, token_id = self._context, self._context.limits, caller.token_id
        _check_may_read(caller)
        parsed = await self._pool.parse(ParseRequest(sql, result_format == "rows"), token_id)
        refs = await context.executor.run(lambda: self._resolve(caller, parsed), limits.read_s)
        if parsed.catalogue:
            wire["listed"] = await context.executor.run(lambda: self._readable_views(caller), limits.read_s)
        related = self._related([ref.view for ref in refs], token, result_format) if token is not None else []
        query = QueryRequest(
            sql,
            list(parameters),
            [source_of(ref, context.app.name, context.data) for ref in refs],
            *(
                limits.sql_s,
                limits.sql_rows_max,
                bytes_max or limits.answer_bytes_max,
                limits.sql_memory_bytes,
            ),
            result_format,
            **wire,
        )
        while True:
            for view in related:
                assert token is not None
                await self._waiter.wait(view, token, deadline)
            response = await self._pool.answer(query, token_id)
            # Check again: a restore can have moved a store to an earlier position meanwhile.
            behind = [
                (ref.view, read.position)
                for ref, read in zip((ref for ref in refs if not ref.words), response.positions, strict=True)
                if token is not None
                and ref.view in related
                and not self._causality.covers(ref.view, read.position, token)
            ]
            if not behind:
                return response
            if context.clock.steady() > deadline:
                raise position_timeout(*behind[0])

    def _readable_views(self, caller: Caller) -> list[ListedView]:
        """Return the views that the caller may read and that have data."""
        listed = []
        for name in self._views.names:
            view = self._views.resolve(name)
            if caller.may(READ_VIEW, name) and not isinstance(view.store, OnRead):
                state = self._views.state(view)
                if state is not None:
                    listed.append(ListedView(name, state.schema.to_json()))
        return listed

    def _related(self, views: list[View], token: PositionToken, result_format: str) -> list[View]:
        """Return the views that derive from the token's topics. Over HTTP, raise if no view does.

        In PostgreSQL's protocol, the token is a setting of the connection and can be unrelated to a statement.
        """
        related, unrelated = [], None
        for view in views:
            try:
                self._causality.check_related(view, token)
            except InvalidPositionToken as error:
                unrelated = error
            else:
                related.append(view)
        if not related and result_format != "rows":
            raise unrelated or InvalidPositionToken(
                "'after' needs a statement that reads a view; this statement reads no view"
            )
        return related

    def _resolve(self, caller: Caller, parsed: Parsed) -> list[ViewRef]:
        """Find the views that the statement names.

        For a view that the caller may not read, raise the same error as for a view that does not exist. So a caller
        cannot find out which views exist, even with a WITH clause, a function, or a name in another case.
        """
        refs: list[ViewRef] = []
        tables = [*(TableRef(name) for name in parsed.names), *parsed.words]
        tables += [TableRef(search.name) for search in parsed.words if search.name not in parsed.names]
        for table in tables:
            name = self.find_name(caller, table.name)
            if name is not None:
                refs.append(ViewRef(table.name, self._views.resolve(name), table.words))
            elif table.words or table.name.lower() not in map(str.lower, parsed.bound):
                raise _unknown(caller, table.name)
        return refs

    def view(self, caller: Caller, name: str) -> View:
        """Return the view that currently serves a name in the statement."""
        return self._views.resolve(self.find_name(caller, name) or name)

    async def position(self, view: View) -> Position | None:
        """Return the view's current position, or None if the store has no position or is unavailable."""
        try:
            state = await self._context.run_on_store(lambda: self._views.state(view), view)
        except (Unavailable, TooBusy):
            return None
        return None if state is None else state.position

    def find_name(self, caller: Caller, name: str) -> str | None:
        """Find a view among those that the caller may read. SQL ignores case."""
        matching = [
            view_name
            for view_name in self._views.names
            if view_name.lower() == name.lower() and caller.may(READ_VIEW, view_name)
        ]
        if name in matching:
            return name
        if len(matching) > 1:
            raise SqlRefused(
                f"{name[:100]!r} is ambiguous: {' or '.join(matching)}", hint="write it in double quotes"
            )
        return matching[0] if matching else None


def _check_may_read(caller: Caller) -> None:
    """Check this for every statement, because even a statement without views occupies a process."""
    if not caller.may_for_some_name(READ_VIEW):
        raise NotAllowed(
            f"SQL needs the scope {READ_VIEW} for at least one view, and the token does not have it",
            hint=f"create a token with the scope: headrace token create NAME --scope {READ_VIEW}:VIEW",
        )


def _unknown(caller: Caller, name: str) -> ServeError:
    if caller.may(READ_VIEW, name):
        return NotFound(f"view {name[:100]!r} does not exist", hint="list the views: GET /v1/views")
    return NotAllowed(
        f"the token does not allow {READ_VIEW}:{name[:100]}",
        hint="create a token with the scope: headrace token create NAME --scope SCOPE",
    )


def source_of(ref: ViewRef, app: str, data: Path) -> Source:
    view = ref.view
    store = location_of(view, app, data)
    if store is None:
        raise QueryRefused(
            f"view {view.name!r} is computed on read, and SQL needs a store",
            hint="query its rows without SQL, or set a store: app.view(..., store=SQLite())",
        )
    return Source(ref.name, view.name, store, ref.words)
