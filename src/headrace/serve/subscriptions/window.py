"""The first rows of a query, as one step after the other changes which they are: a lens for questions with a limit.

It knows some rows more than it tells (``ranking``) and takes every step of the log to them, so that at each border
between steps it has what the query would give there. When too many of them are gone, the first rows are read from the
store again, at whatever place the store is, and brought to a border by what the log has since: as a snapshot is.

What changed between two borders is remembered for those who are behind. Who comes with a cursor is at a place whose
first rows nobody knows any more. But with ``n`` rows in the window, and ``c`` keys that the log has changed since, a
row that did not change has moved by ``c`` ranks at most. So one that was in the window is among the first ``n + c``
now, and one that is among the first ``n - c`` now was in it: the rows between are told, and those behind as gone.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Iterable
from typing import NamedTuple, Protocol

from headrace.clock import Clock
from headrace.serve.errors import NotServing
from headrace.serve.subscriptions.epoch import Epoch
from headrace.serve.subscriptions.errors import CursorOld, SlowReader, WindowLarge
from headrace.serve.subscriptions.history import History
from headrace.serve.subscriptions.lens import Frame, Having, Lens
from headrace.serve.subscriptions.message import Message, in_parts
from headrace.serve.subscriptions.place import Place
from headrace.serve.subscriptions.ranking import Ranked, Ranking
from headrace.serve.subscriptions.step import Change
from headrace.serve.subscriptions.wanted import Wanted
from headrace.views.position import Shape, Standing
from headrace.views.scanning import sort_key

__all__ = ["FirstRows", "Window"]

_MORE = 50
_BYTES_MAX = 4 << 20
_TOLD_BYTES_MAX = 1 << 20
_TOLD_MAX = 200
_CHANGED_MAX = 2_000
"""Keys that may have changed since a cursor."""
_TRIES = 5
_FRAMES_KEPT = 8


class FirstRows(NamedTuple):
    """As a store has them at one place."""

    standing: Standing
    rows: list[Ranked]
    more: bool


class Followed(Protocol):
    """What a feed is to a window."""

    @property
    def history(self) -> History: ...

    @property
    def epoch(self) -> Epoch: ...

    async def reach(self, place: Place) -> None: ...

    async def resume(self, place: Place, known_ms: int) -> None: ...


class _Moved(NamedTuple):
    """From one border on, to that of the next."""

    first: int
    merged: dict[bytes, bytes | None]
    size_bytes: int


class Window(Lens):
    """In one event loop. ``read`` gives the first so many rows of the query."""

    def __init__(
        self,
        wanted: Wanted,
        feed: Followed,
        shape: Shape,
        clock: Clock,
        read: Callable[[int], Awaitable[FirstRows]],
        having: Having | None = None,
    ) -> None:
        super().__init__(wanted, feed.epoch, shape, feed.history, clock, having)
        assert wanted.limit is not None
        self._count = wanted.limit
        self._feed = feed
        self._read = read
        self._sort_key = sort_key(shape, self.order)
        self._moving = asyncio.Lock()
        self._ranking: Ranking | None = None
        self._at = 0
        """The border that the ranking is at."""
        self._place = feed.history.end
        self._told_at = 0
        """The border up to which it is known what has changed."""
        self._told_rows: dict[bytes, bytes] = {}
        self._told_since: deque[_Moved] = deque()
        self._told_bytes = 0
        self._frames_joined: OrderedDict[tuple[int, int], Frame] = OrderedDict()
        self.reads = 0
        """How often the store was asked."""

    # What is told

    async def first(self, shown: int) -> tuple[list[Message], int]:
        """All rows of it, in order, and the number of the step behind them."""
        async with self._moving:
            rows = (await self._moved_to(shown)).first(self._count)
            return in_parts("snapshot", rows.values(), (), self.told(self._place)), self._at

    async def frame(self, first: int, end: int) -> Frame:
        async with self._moving:
            if first < self._history.first:
                raise _forgotten()
            since = self._history.border(first)
            await self._moved_to(end)
            found = self._frames_joined.get((first, self._at))
            if found is None:
                found = self._told(self._merged_since(first), since, self._place, self._at)
                self._frames_joined[first, self._at] = found
                if len(self._frames_joined) > _FRAMES_KEPT:
                    self._frames_joined.popitem(last=False)
            return found

    def expect_near(self, place: Place) -> None:
        changes, _ = self._history.joint(place, self._history.end)
        _expect_few({one.key for one in changes if self.may_fit(one)})

    async def behind(self, place: Place, known_ms: int) -> Frame:
        async with self._moving:
            for _ in range(_TRIES):
                ranking = await self._moved_to(self._history.next)
                await self._feed.resume(place, known_ms)
                if not self._place.covers(place):
                    continue
                changes, _ = self._history.joint(place, self._place)
                changed = {one.key for one in changes if self.may_fit(one)}
                _expect_few(changed)
                if ranking.reaches(self._count + len(changed)):
                    merged = _since_unknown(ranking, changed, self._count)
                    return self._told(merged, place, self._place, self._at)
                try:
                    await self._read_again(self._count + len(changed))
                except WindowLarge as error:
                    raise CursorOld(error.message) from error
        raise CursorOld("its rows change faster than they can be read")

    # What moves it

    async def _moved_to(self, end: int) -> Ranking:
        """To that border, or one behind it."""
        ranking = self._ranking
        if ranking is None or self._at < self._history.first:
            # Nobody has asked yet; or not for so long that steps are forgotten.
            self._ranking = None
            ranking = await self._read_again(self._count)
        if self._history.first <= self._at < end:
            steps = [*self._history.steps(self._at, end)]
            await self._take(ranking, [one for step in steps for one in step.changes])
            self._at, self._place = end, steps[-1].after
        if not ranking.reaches(self._count):
            return await self._read_again(self._count)
        self._note(ranking)
        return ranking

    async def _take(self, ranking: Ranking, changes: list[Change]) -> None:
        judged = await self.judged(changes)
        for one, fits in judged:
            if fits and one.row is not None and one.values is not None:
                ranking.put(Ranked(one.key, one.values, one.row))
            else:
                ranking.drop(one.key)

    async def _read_again(self, count: int) -> Ranking:
        """At a border that is no earlier than where it is, with at least so many rows, if there are."""
        feed, history = self._feed, self._history
        depth = count * 2 + _MORE
        for _ in range(_TRIES):
            found = await self._read(depth)
            self.reads += 1
            if not feed.epoch.has(found.standing):
                raise self._unread("it was rebuilt meanwhile")
            position = found.standing.position
            place = until = feed.epoch.place(position)
            if self._ranking is not None:
                until = place.most(self._place)
            await feed.reach(until)
            try:
                await feed.resume(place, max(position.complete_ms, position.stored_ms))
            except CursorOld as error:
                raise self._unread(f"its store is too far behind the log: {error.message}") from error
            # Taken before anything is waited for: what is remembered now has all of it.
            changes, number = history.joint(place, until)
            border = history.border(number)
            ranking = Ranking(
                self._sort_key, found.rows, is_all=not found.more, rows_max=depth * 2, bytes_max=_BYTES_MAX
            )
            _expect_small(ranking, count, found)
            await self._take(ranking, changes)
            if ranking.reaches(count):
                if self._ranking is None:
                    self._forget()
                    self._at = self._told_at = number
                    self._told_rows = ranking.first(self._count)
                # Two borders may be the same place.
                self._at, self._place = max(self._at, number), border
                self._ranking = ranking
                self._note(ranking)
                return ranking
            depth *= 2
        raise self._unread("its rows change faster than they can be read")

    def _unread(self, why: str) -> NotServing:
        return NotServing(
            f"the first rows of view {self.wanted.view!r} cannot be told as of one moment: {why}",
            hint="come again in a moment, with the cursor",
        )

    # What is remembered

    def _note(self, ranking: Ranking) -> None:
        """What the steps that were taken since the last time have changed."""
        if self._at == self._told_at:
            return
        before, now = self._told_rows, ranking.first(self._count)
        merged: dict[bytes, bytes | None] = {key: row for key, row in now.items() if before.get(key) != row}
        merged.update((key, None) for key in before if key not in now)
        size = sum(len(key) + len(row or b"") for key, row in merged.items())
        self._told_since.append(_Moved(self._told_at, merged, size))
        self._told_bytes += size
        self._told_at, self._told_rows = self._at, now
        while len(self._told_since) > 1 and (
            self._told_bytes > _TOLD_BYTES_MAX or len(self._told_since) > _TOLD_MAX
        ):
            self._told_bytes -= self._told_since.popleft().size_bytes

    def _forget(self) -> None:
        self._told_since.clear()
        self._told_bytes = 0

    def _merged_since(self, first: int) -> dict[bytes, bytes | None]:
        if first == self._at:
            return {}
        behind = [one for one in self._told_since if one.first >= first]
        if not behind or behind[0].first != first:
            raise _forgotten()
        merged: dict[bytes, bytes | None] = {}
        for one in behind:
            merged.update(one.merged)
        return merged


def _forgotten() -> SlowReader:
    return SlowReader(
        "changes came faster than they were taken, and what came first is forgotten",
        hint="come again, with the cursor",
    )


def _expect_few(changed: set[bytes]) -> None:
    if len(changed) > _CHANGED_MAX:
        raise CursorOld(
            f"{len(changed)} rows have changed since, and up to {_CHANGED_MAX} are told of a query with a limit"
        )


def _expect_small(ranking: Ranking, count: int, found: FirstRows) -> None:
    if len(ranking) < min(count, len(found.rows)):
        raise WindowLarge(
            f"the first {count} rows have more than {_BYTES_MAX} bytes, which is the most with a limit",
            hint="ask for fewer, or follow the query without a limit",
        )


def _since_unknown(ranking: Ranking, changed: set[bytes], count: int) -> dict[bytes, bytes | None]:
    """What may be other than it was before these keys changed."""
    told: dict[bytes, bytes | None] = dict.fromkeys(changed)
    told.update(_behind(ranking.first(count + len(changed)), changed, count))
    return told


def _behind(
    ranked: dict[bytes, bytes], changed: set[bytes], count: int
) -> Iterable[tuple[bytes, bytes | None]]:
    for rank, (key, row) in enumerate(ranked.items()):
        if rank >= count:
            yield key, None
        elif key in changed or rank + len(changed) >= count:
            yield key, row
