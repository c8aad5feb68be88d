"""A snapshot: the rows of a view or query at one position of the log, although they are read page by page.

Each page reflects the store's position when the page was read, so positions of pages differ. With each page the server
also sends the changes between the position so far and the page's position: for every changed key either the current
row, or that the row is gone. So after each page, all rows that were sent reflect the same position. After the last
page, this is the snapshot's position. The history must therefore contain only the changes that arrive while one page is
read.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headrace.model.store import Postgres, SQLite
from headrace.serve.errors import CursorExpired, Unavailable
from headrace.serve.http.context import ServeContext
from headrace.serve.query.row_page import encode_sort_values
from headrace.serve.query.views import Views
from headrace.serve.subscribe.log_position import LogPosition
from headrace.serve.subscribe.messages import Message, in_parts
from headrace.serve.subscribe.query import SubscriptionQuery
from headrace.serve.subscribe.query_view import QueryView
from headrace.serve.subscribe.ranked_rows import RankedRow
from headrace.serve.subscribe.source import Source
from headrace.serve.subscribe.top_n_view import TopRows
from headrace.stores.position import ViewState

if TYPE_CHECKING:
    from headrace.serve.subscribe.feed import Feed

__all__ = ["Snapshot", "SnapshotPage", "SnapshotPages"]


class Snapshot:
    """``log_position`` and ``next`` are final after the last message."""

    def __init__(self, feed: Feed, query_view: QueryView) -> None:
        self._feed = feed
        self._query_view = query_view
        self.log_position: LogPosition = feed.history.end
        self.next = 0

    async def messages(self) -> AsyncGenerator[Message]:
        feed, query_view = self._feed, self._query_view
        pages = feed.pages(query_view)
        after: str | None = ""
        is_first = True
        while after is not None:
            page = await pages.get(after)
            if not feed.epoch.has(page.state):
                raise self._unstable("the view was rebuilt while its rows were read")
            position = page.state.position
            log_position = feed.epoch.log_position(position)
            # The page can be older than the changes that were already sent, because stores lag behind the log.
            since, until = (
                (log_position, log_position)
                if is_first
                else (self.log_position.minimum(log_position), self.log_position.maximum(log_position))
            )
            await feed.reach(until)
            try:
                await feed.resume(since, max(position.complete_ms, position.stored_ms))
            except CursorExpired as error:
                raise self._unstable(
                    f"the subscriber reads too slowly, or the store lags too far behind the log: {error.message}"
                ) from error
            # Call align before the next await: during an await, the history could drop these steps.
            changes, self.next = feed.history.align(since, until)
            self.log_position = feed.history.border(self.next)
            changed = await query_view.merged(changes)
            rows = [row for key, row in page.rows if key not in changed]
            rows += [row for row in changed.values() if row is not None]
            # No row was sent before the first page, so no row can be gone.
            gone = [] if is_first else [key for key, row in changed.items() if row is None]
            after, is_first = page.next, False
            last = None if after is not None else query_view.position_and_cursor(self.log_position)
            for part in in_parts("snapshot", rows, gone, last):
                yield part

    def _unstable(self, why: str) -> Unavailable:
        return Unavailable(
            f"view {self._feed.source.view.name!r} cannot be read at one position: {why}",
            hint="subscribe again in a moment",
        )


_CACHED_PAGES_MAX = 4
_CACHED_S = 2.0
_PAGE_ROWS = 500
_SCANNED_PAGE_ROWS = 10_000
"""Rows per page for stores that scan all rows for each page."""


@dataclass(frozen=True, slots=True)
class SnapshotPage:
    state: ViewState
    rows: list[tuple[bytes, bytes]]
    """Pairs of a key and a row, both as JSON."""
    next: str | None
    """The sort values after which the next page starts; None for the last page."""


class SnapshotPages:
    """Pages of one query. Subscribers that start at about the same time share them. Use it in one event loop."""

    def __init__(self, context: ServeContext, views: Views, source: Source, query: SubscriptionQuery) -> None:
        self._context = context
        self._views = views
        self._source = source
        self._query = query
        by_index = isinstance(source.view.store, (SQLite, Postgres)) and query.sort is None
        self._limit = _PAGE_ROWS if by_index else _SCANNED_PAGE_ROWS
        self._cached: OrderedDict[str, tuple[asyncio.Task[SnapshotPage], float]] = OrderedDict()

    async def get(self, after: str) -> SnapshotPage:
        """Return the page after these sort values, or the first page if ``after`` is empty."""
        now = self._context.clock.steady()
        cached = self._cached.get(after)
        if cached is None or (cached[0].done() and now - cached[1] > _CACHED_S):
            task = asyncio.create_task(self._read(after))
            task.add_done_callback(lambda task: self._forget_failed(after, task))
            cached = self._cached[after] = (task, now)
            self._cached.move_to_end(after)
            while len(self._cached) > _CACHED_PAGES_MAX:
                self._cached.popitem(last=False)
        return await asyncio.shield(cached[0])

    async def first(self, count: int) -> TopRows:
        """Read the first ``count`` rows from the store, without paging."""
        return await self._context.run_on_store(lambda: self._first(count), self._source.view)

    def _first(self, count: int) -> TopRows:
        query, limit_s = self._query.page_query("", count), self._context.limits.read_s
        result = self._views.query(self._source.view, query, limit_s)
        if not self._source.epoch.has(result.state):
            return TopRows(result.state, [], False)
        to_json = self._source.decoder.copy().to_json
        rows = ((to_json(row), row) for row in result.rows)
        return TopRows(result.state, [RankedRow(key, row, text) for (key, text), row in rows], result.more)

    def _forget_failed(self, after: str, task: asyncio.Task[SnapshotPage]) -> None:
        if task.cancelled() or task.exception() is not None:
            cached = self._cached.get(after)
            if cached is not None and cached[0] is task:
                del self._cached[after]

    async def _read(self, after: str) -> SnapshotPage:
        return await self._context.run_on_store(lambda: self._page(after), self._source.view)

    def _page(self, after: str) -> SnapshotPage:
        query, limit_s = self._query.page_query(after, self._limit), self._context.limits.read_s
        result = self._views.query(self._source.view, query, limit_s)
        state = result.state
        next_values = None
        if result.more and result.rows:
            next_values = encode_sort_values(state.schema, result.query.order, result.rows[-1])
        if not self._source.epoch.has(state):
            return SnapshotPage(state, [], None)
        to_json = self._source.decoder.copy().to_json
        return SnapshotPage(state, [to_json(row) for row in result.rows], next_values)
