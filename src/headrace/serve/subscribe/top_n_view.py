"""The first rows of a query with a limit, updated step by step. A step is the changes between two positions.

The view stores more rows than it sends (``ranked_rows.py``) and applies every step of the log to them. The position
between two steps is called a border. At each border, the view has the rows that the query would return at that
position. When too many rows have left, it reads the first rows from the store again, and applies the changes after the
store's position, like a snapshot.

The view retains the changes between borders for slow subscribers. When a subscriber resumes from a cursor, the first
rows at the cursor's position are no longer known. But if the limit is ``n`` rows, and ``c`` keys have changed after the
cursor, a row that did not change has moved by at most ``c`` ranks. So a row that was among the first ``n`` is now among
the first ``n + c``. A row that is now among the first ``n - c`` was already among the first ``n``. The server therefore
sends the rows from rank ``n - c`` to ``n``, and the rows from ``n`` to ``n + c`` as gone.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Iterable
from typing import NamedTuple, Protocol

from headrace.clock import Clock
from headrace.serve.errors import CursorExpired, LimitTooLarge, SlowReader, Unavailable
from headrace.serve.subscribe.history import History
from headrace.serve.subscribe.log_position import Change, Epoch, LogPosition
from headrace.serve.subscribe.messages import Message, in_parts
from headrace.serve.subscribe.query import SubscriptionQuery
from headrace.serve.subscribe.query_view import Frame, MatchingRows, QueryView
from headrace.serve.subscribe.ranked_rows import RankedRow, RankedRows
from headrace.stores.position import ViewSchema, ViewState
from headrace.stores.scan import sort_key

__all__ = ["TopNView", "TopRows"]

_SPARE_ROWS = 50
_BYTES_MAX = 4 << 20
_CHANGES_BYTES_MAX = 1 << 20
_CHANGES_MAX = 200
_CHANGED_MAX = 2_000
"""Maximum keys that may have changed after a cursor."""
_ATTEMPTS = 5
_FRAMES_CACHED = 8


class TopRows(NamedTuple):
    """The first rows of a store at one position."""

    state: ViewState
    rows: list[RankedRow]
    more: bool


class FeedPort(Protocol):
    """The part of a feed that this module uses."""

    @property
    def history(self) -> History: ...

    @property
    def epoch(self) -> Epoch: ...

    async def reach(self, log_position: LogPosition) -> None: ...

    async def resume(self, log_position: LogPosition, known_ms: int) -> None: ...


class _BorderChanges(NamedTuple):
    """The changes from one border to the next."""

    first: int
    merged: dict[bytes, bytes | None]
    size_bytes: int


class TopNView(QueryView):
    """Use it in one event loop. ``read`` returns the first rows of the query from the store."""

    def __init__(
        self,
        query: SubscriptionQuery,
        feed: FeedPort,
        schema: ViewSchema,
        clock: Clock,
        read: Callable[[int], Awaitable[TopRows]],
        matching_rows: MatchingRows | None = None,
    ) -> None:
        super().__init__(query, feed.epoch, schema, feed.history, clock, matching_rows)
        assert query.limit is not None
        self._count = query.limit
        self._feed = feed
        self._read = read
        self._sort_key = sort_key(schema, self.order)
        self._lock = asyncio.Lock()
        self._ranking: RankedRows | None = None
        self._next_step = 0
        """The number of the first step that is not yet applied to the ranking."""
        self._position = feed.history.end
        self._next_unstored_step = 0
        """The number of the first step whose changes are not yet in ``_border_changes``."""
        self._border_rows: dict[bytes, bytes] = {}
        self._border_changes: deque[_BorderChanges] = deque()
        self._border_changes_bytes = 0
        self._cached_frames: OrderedDict[tuple[int, int], Frame] = OrderedDict()
        self.reads = 0
        """How often the store was read."""

    # Messages

    async def first(self, end: int) -> tuple[list[Message], int]:
        """Return messages with all rows in order, and the number of the next step."""
        async with self._lock:
            rows = (await self._advance(end)).first(self._count)
            return in_parts(
                "snapshot", rows.values(), (), self.position_and_cursor(self._position)
            ), self._next_step

    async def frame(self, first: int, end: int) -> Frame:
        async with self._lock:
            if first < self._history.first:
                raise _dropped()
            since = self._history.border(first)
            await self._advance(end)
            frame = self._cached_frames.get((first, self._next_step))
            if frame is None:
                frame = self._frame(self._merged_since(first), since, self._position, self._next_step)
                self._cached_frames[first, self._next_step] = frame
                if len(self._cached_frames) > _FRAMES_CACHED:
                    self._cached_frames.popitem(last=False)
            return frame

    def check_resumable(self, log_position: LogPosition) -> None:
        changes, _ = self._history.align(log_position, self._history.end)
        _check_count({change.key for change in changes if self.may_match(change)})

    async def since(self, log_position: LogPosition, known_ms: int) -> Frame:
        async with self._lock:
            for _ in range(_ATTEMPTS):
                ranking = await self._advance(self._history.next)
                await self._feed.resume(log_position, known_ms)
                if not self._position.covers(log_position):
                    continue
                changes, _ = self._history.align(log_position, self._position)
                changed = {change.key for change in changes if self.may_match(change)}
                _check_count(changed)
                if ranking.has_first(self._count + len(changed)):
                    merged = _possible_changes(ranking, changed, self._count)
                    return self._frame(merged, log_position, self._position, self._next_step)
                try:
                    await self._read_again(self._count + len(changed))
                except LimitTooLarge as error:
                    raise CursorExpired(error.message) from error
        raise CursorExpired("the rows change faster than they can be read")

    # Apply steps

    async def _advance(self, end: int) -> RankedRows:
        """Apply all steps with a number lower than ``end``, and possibly later steps."""
        ranking = self._ranking
        if ranking is None or self._next_step < self._history.first:
            # This is the first call, or the history has dropped steps that are not applied yet.
            self._ranking = None
            ranking = await self._read_again(self._count)
        if self._history.first <= self._next_step < end:
            steps = [*self._history.steps(self._next_step, end)]
            await self._apply(ranking, [change for step in steps for change in step.changes])
            self._next_step, self._position = end, steps[-1].after
        if not ranking.has_first(self._count):
            return await self._read_again(self._count)
        self._store_changes(ranking)
        return ranking

    async def _apply(self, ranking: RankedRows, changes: list[Change]) -> None:
        for change, is_match in await self.matched_changes(changes):
            if is_match and change.row is not None and change.values is not None:
                ranking.put(RankedRow(change.key, change.values, change.row))
            else:
                ranking.drop(change.key)

    async def _read_again(self, count: int) -> RankedRows:
        """Read the rows from the store again, at the current border or a later one. Read at least ``count`` rows if
        they exist.
        """
        feed, history = self._feed, self._history
        depth = count * 2 + _SPARE_ROWS
        for _ in range(_ATTEMPTS):
            top = await self._read(depth)
            self.reads += 1
            if not feed.epoch.has(top.state):
                raise self._unavailable("the view was rebuilt while its rows were read")
            position = top.state.position
            log_position = until = feed.epoch.log_position(position)
            if self._ranking is not None:
                until = log_position.maximum(self._position)
            await feed.reach(until)
            try:
                await feed.resume(log_position, max(position.complete_ms, position.stored_ms))
            except CursorExpired as error:
                raise self._unavailable(f"the store lags too far behind the log: {error.message}") from error
            # Call align before the next await: during an await, the history could drop these steps.
            changes, number = history.align(log_position, until)
            border = history.border(number)
            ranking = RankedRows(
                self._sort_key, top.rows, is_all=not top.more, rows_max=depth * 2, bytes_max=_BYTES_MAX
            )
            _check_size(ranking, count, top)
            await self._apply(ranking, changes)
            if ranking.has_first(count):
                if self._ranking is None:
                    self._drop_changes()
                    self._next_step = self._next_unstored_step = number
                    self._border_rows = ranking.first(self._count)
                # Two borders can have the same position, so the number must not decrease.
                self._next_step, self._position = max(self._next_step, number), border
                self._ranking = ranking
                self._store_changes(ranking)
                return ranking
            depth *= 2
        raise self._unavailable("the rows change faster than they can be read")

    def _unavailable(self, why: str) -> Unavailable:
        return Unavailable(
            f"the first rows of view {self.query.view!r} cannot be read at one position: {why}",
            hint="reconnect with the cursor in a moment",
        )

    # Changes for slow subscribers

    def _store_changes(self, ranking: RankedRows) -> None:
        """Store the differences to the rows at the previous border."""
        if self._next_step == self._next_unstored_step:
            return
        previous, current = self._border_rows, ranking.first(self._count)
        merged: dict[bytes, bytes | None] = {
            key: row for key, row in current.items() if previous.get(key) != row
        }
        merged.update((key, None) for key in previous if key not in current)
        size = sum(len(key) + len(row or b"") for key, row in merged.items())
        self._border_changes.append(_BorderChanges(self._next_unstored_step, merged, size))
        self._border_changes_bytes += size
        self._next_unstored_step, self._border_rows = self._next_step, current
        while len(self._border_changes) > 1 and (
            self._border_changes_bytes > _CHANGES_BYTES_MAX or len(self._border_changes) > _CHANGES_MAX
        ):
            self._border_changes_bytes -= self._border_changes.popleft().size_bytes

    def _drop_changes(self) -> None:
        self._border_changes.clear()
        self._border_changes_bytes = 0

    def _merged_since(self, first: int) -> dict[bytes, bytes | None]:
        if first == self._next_step:
            return {}
        later = [changes for changes in self._border_changes if changes.first >= first]
        if not later or later[0].first != first:
            raise _dropped()
        merged: dict[bytes, bytes | None] = {}
        for changes in later:
            merged.update(changes.merged)
        return merged


def _dropped() -> SlowReader:
    return SlowReader(
        "changes arrived faster than the subscriber read them, and the server dropped the oldest changes",
        hint="reconnect with the cursor",
    )


def _check_count(changed: set[bytes]) -> None:
    if len(changed) > _CHANGED_MAX:
        raise CursorExpired(
            f"{len(changed)} rows changed after the cursor (a query with a limit allows {_CHANGED_MAX})"
        )


def _check_size(ranking: RankedRows, count: int, top: TopRows) -> None:
    if len(ranking) < min(count, len(top.rows)):
        raise LimitTooLarge(
            f"the first {count} rows exceed {_BYTES_MAX} bytes",
            hint="use a smaller limit, or subscribe without a limit",
        )


def _possible_changes(ranking: RankedRows, changed: set[bytes], count: int) -> dict[bytes, bytes | None]:
    """Return the first rows that can differ from those before these keys changed."""
    rows: dict[bytes, bytes | None] = dict.fromkeys(changed)
    rows.update(_moved_rows(ranking.first(count + len(changed)), changed, count))
    return rows


def _moved_rows(
    ranked: dict[bytes, bytes], changed: set[bytes], count: int
) -> Iterable[tuple[bytes, bytes | None]]:
    for rank, (key, row) in enumerate(ranked.items()):
        if rank >= count:
            yield key, None
        elif key in changed or rank + len(changed) >= count:
            yield key, row
