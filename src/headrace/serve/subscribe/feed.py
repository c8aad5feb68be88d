"""The feed of a view. Its subscribers share the reader of the view's topic, the history of changes, and the queries.

A step is the changes between two positions. New steps become visible to all subscribers at the same time, at most once
per ``frame_s`` seconds. So all subscribers that read fast enough receive the same messages, which are encoded only
once.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import Callable
from typing import NamedTuple, Protocol, TypeVar

from headrace.errors import HeadraceError
from headrace.model.store import Search
from headrace.serve.errors import CursorExpired, TooManyMissedChanges, TooManySubscribers, Unavailable
from headrace.serve.http.context import ServeContext
from headrace.serve.query.views import Views
from headrace.serve.subscribe.backfill import backfill
from headrace.serve.subscribe.history import History
from headrace.serve.subscribe.log_position import LogPosition, Step
from headrace.serve.subscribe.query import SubscriptionQuery
from headrace.serve.subscribe.query_view import MatchingRows, QueryView
from headrace.serve.subscribe.snapshot import SnapshotPages
from headrace.serve.subscribe.source import Source
from headrace.serve.subscribe.tail import Tail
from headrace.serve.subscribe.top_n_view import TopNView
from headrace.stores.errors import QueryRefused
from headrace.stores.rows import Row

__all__ = ["Feed", "FeedListener"]

_ENDS_S = 1.0
_EXPENSIVE_MAX = 50
"""Maximum number of full-text queries and queries with a limit, per view. Each full-text query needs an index of the
changed rows, and each query with a limit needs rows in memory.
"""

T = TypeVar("T")


class FeedListener(Protocol):
    """The feed sets ``wake`` when new steps become visible."""

    wake: asyncio.Event


def _is_expensive(query: SubscriptionQuery) -> bool:
    return query.words is not None or query.limit is not None


class _EndsRead(NamedTuple):
    started_s: float
    ends: asyncio.Task[dict[int, int]]


class Feed:
    """Use it in one event loop."""

    def __init__(self, context: ServeContext, views: Views, source: Source) -> None:
        self._context = context
        self._views = views
        self._loop = asyncio.get_running_loop()
        self.source = source
        self.epoch = source.epoch
        self.history = History(self.epoch.log_position(source.state.position), context.limits.history_bytes)
        self.published_end = 0
        """Steps with a lower number are visible to subscribers."""
        self.end_reason = ""
        """Why the feed has ended; empty while it runs."""
        self.fault: BaseException | None = None
        self.steps = 0
        self.subscribers: set[FeedListener] = set()
        self.idle_since = context.clock.steady()
        self._query_views: dict[SubscriptionQuery, tuple[QueryView, SnapshotPages]] = {}
        self._published_at = 0.0
        self._publish_timer: asyncio.TimerHandle | None = None
        self._moved = asyncio.Event()
        self._extending = asyncio.Lock()
        self._ends: _EndsRead | None = None
        self._too_large: tuple[int, LogPosition] | None = None
        """The number of the oldest step when a backfill failed, and the position whose later changes did not fit into
        the history.
        """
        view = source.view
        self._tail = Tail(
            source,
            context.clock,
            read_state=lambda: views.state(view),
            on_step=lambda step: self._from_tail(self._note, step),
            on_end=lambda why: self._from_tail(self._end, why),
            on_fault=lambda error: self._from_tail(self._fail, error),
        )
        self._tail.start()

    def stop(self) -> None:
        self._tail.stop()
        if self._publish_timer is not None:
            self._publish_timer.cancel()

    def join(self, timeout_s: float) -> None:
        self._tail.join(timeout_s)

    @property
    def failure(self) -> str:
        return self._tail.failure

    # Subscribers

    def enter(self, subscriber: FeedListener, query: SubscriptionQuery) -> QueryView:
        query_view, _ = self._query_view(query)
        query_view.subscribers += 1
        self.subscribers.add(subscriber)
        return query_view

    def leave(self, subscriber: FeedListener, query_view: QueryView) -> None:
        self.subscribers.discard(subscriber)
        query_view.subscribers -= 1
        if query_view.subscribers == 0:
            self._query_views.pop(query_view.query, None)
        self.idle_since = self._context.clock.steady()

    def preview(self, query: SubscriptionQuery) -> QueryView:
        """Return a query view that is not registered. Raise if the query does not match the view's columns."""
        return self._create(query)[0]

    def pages(self, query_view: QueryView) -> SnapshotPages:
        return self._query_views[query_view.query][1]

    @property
    def query_views(self) -> int:
        return len(self._query_views)

    def _query_view(self, query: SubscriptionQuery) -> tuple[QueryView, SnapshotPages]:
        entry = self._query_views.get(query)
        if entry is None:
            expensive = sum(map(_is_expensive, self._query_views))
            if _is_expensive(query) and expensive >= _EXPENSIVE_MAX:
                raise TooManySubscribers(
                    f"too many different subscription queries with match or limit on view"
                    f" {self.source.view.name!r} (maximum {_EXPENSIVE_MAX})",
                    hint="use a query that other subscribers use, omit match and limit, or try again later",
                )
            entry = self._query_views[query] = self._create(query)
        return entry

    def _create(self, query: SubscriptionQuery) -> tuple[QueryView, SnapshotPages]:
        query.check()
        context, schema = self._context, self.source.state.schema
        pages = SnapshotPages(context, self._views, self.source, query)
        matching_rows = None if query.words is None else self._matching_rows(query.words)
        if query.limit is None:
            return QueryView(query, self.epoch, schema, self.history, context.clock, matching_rows), pages
        return TopNView(query, self, schema, context.clock, pages.first, matching_rows), pages

    def _matching_rows(self, words: str) -> MatchingRows:
        view = self.source.view
        if not isinstance(view.store, Search):
            raise QueryRefused(
                f"view {view.name!r} has no full-text index",
                hint="declare another view of the topic: app.view(..., store=Search())",
            )
        from headrace.stores.search.words import WordMatcher

        matcher = WordMatcher(self.source.state.schema, self.epoch.searched, words)

        async def matching_rows(rows: list[Row]) -> set[int]:
            match = functools.partial(matcher.matching, rows)
            return await self._context.executor.run(match, self._context.limits.read_s)

        return matching_rows

    # Steps

    def _from_tail(self, call: Callable[[T], None], value: T) -> None:
        # The event loop might already be closed.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(call, value)

    def _note(self, step: Step) -> None:
        self.history.append(step)
        self.steps += 1
        self._wake_waiters()
        if self._publish_timer is None:
            wait_s = self._published_at + self._context.limits.frame_s - self._loop.time()
            if wait_s <= 0:
                self._publish()
            else:
                self._publish_timer = self._loop.call_later(wait_s, self._publish)

    def _publish(self) -> None:
        self._publish_timer = None
        self._published_at = self._loop.time()
        self.published_end = self.history.next
        self.wake_all()

    def wake_all(self) -> None:
        for subscriber in self.subscribers:
            subscriber.wake.set()

    def _wake_waiters(self) -> None:
        moved, self._moved = self._moved, asyncio.Event()
        moved.set()

    def _end(self, why: str) -> None:
        self.end_reason = why
        self._publish()
        self._wake_waiters()

    def _fail(self, error: BaseException) -> None:
        self.fault = error
        self._end("the reader of the view's topic has failed")

    # Positions

    async def resume(self, log_position: LogPosition, known_ms: int) -> None:
        """Return when the history includes the position. Raise ``CursorExpired`` if the history cannot include it."""
        if not self.history.end.covers(log_position):
            await self._check_exists(log_position)
            await self.reach(log_position)
        if not log_position.covers(self.history.begin):
            await self._extend(log_position, known_ms)

    async def reach(self, log_position: LogPosition) -> None:
        """Wait until the tail reaches the position. A store or another server can be ahead of the tail."""
        try:
            async with asyncio.timeout(self._context.limits.read_s):
                while not self.history.end.covers(log_position) and not self.end_reason:
                    await self._moved.wait()
        except TimeoutError:
            raise Unavailable(
                f"the topic of view {self.source.view.name!r} was not read up to the store's position: {self.failure}",
                hint="try again in a moment",
            ) from None
        if not self.history.end.covers(log_position):
            raise Unavailable(
                f"view {self.source.view.name!r}: {self.end_reason}", hint="try again in a moment"
            )

    async def _check_exists(self, log_position: LogPosition) -> None:
        """Raise if the position is after the end of the log: the log has lost records, or the cursor is forged."""
        called_s = self._context.clock.steady()
        for not_before_s in (called_s - _ENDS_S, called_s):
            ends = await self._log_ends(not_before_s)
            beyond_end = [
                number for number, offset in log_position.offsets.items() if offset > ends.get(number, 0)
            ]
            if not beyond_end:
                return
        raise CursorExpired(
            f"partition {beyond_end[0]} of the log ends at offset {ends.get(beyond_end[0], 0)}, before the cursor's"
            " offset"
        )

    async def _log_ends(self, not_before_s: float) -> dict[int, int]:
        """Return the log's end offsets, read at the time ``not_before_s`` or later. Subscribers that reconnect together
        share one read.
        """
        reading = self._ends
        if reading is None or reading.started_s < not_before_s:
            cluster, topic = self.source.cluster, self.epoch.topic
            read = functools.partial(cluster.ends, topic, committed=False)
            ends = asyncio.create_task(self._context.run_on_log(read))
            reading = self._ends = _EndsRead(self._context.clock.steady(), ends)
        try:
            return await asyncio.shield(reading.ends)
        except HeadraceError:
            # Forget the failed read, so that the next subscriber reads again.
            if self._ends is reading:
                self._ends = None
            raise

    async def _extend(self, log_position: LogPosition, known_ms: int) -> None:
        """Extend the history backwards. Only one subscriber at a time does this, because the steps that it reads can
        include those that the next subscriber needs.
        """
        async with self._extending:
            for _ in range(3):
                begin, first = self.history.begin, self.history.first
                if log_position.covers(begin):
                    return
                # Many slow subscribers can reconnect at once. Do not read the log for each of them.
                known_first, limit = self._too_large or (first, None)
                if known_first == first and limit is not None and log_position.begins_before(limit):
                    raise TooManyMissedChanges("the changes after the cursor do not fit into the history")
                read = functools.partial(
                    backfill,
                    *(self.source, begin, log_position, known_ms),
                    self.history.free_bytes,
                    self._context.clock.now_ms(),
                )
                try:
                    steps = await self._context.run_on_log(read)
                except TooManyMissedChanges:
                    self._too_large = (first, log_position)
                    raise
                # Retry if the history has dropped its oldest steps during the read.
                if self.history.first == first:
                    self.history.prepend(steps)
                    return
        raise CursorExpired("the history drops changes faster than they can be read again")
