"""All that is shared by those who follow one view: the tail of its topic, what is remembered of it, and the questions.

Steps are shown to subscribers at most every ``frame_s``, to all at the same moment: so those who keep up are told the
same, and it is written once.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeVar

from headrace.errors import HeadraceError
from headrace.model.store import Search
from headrace.serve.errors import NotServing
from headrace.serve.subscriptions.backfill import backfill
from headrace.serve.subscriptions.errors import CursorOld, TooManySubscribers, TooMuchSince
from headrace.serve.subscriptions.history import History
from headrace.serve.subscriptions.lens import Having, Lens
from headrace.serve.subscriptions.place import Place
from headrace.serve.subscriptions.snapshot_pages import SnapshotPages
from headrace.serve.subscriptions.source import Source
from headrace.serve.subscriptions.step import Step
from headrace.serve.subscriptions.tail import Tail
from headrace.serve.subscriptions.wanted import Wanted
from headrace.serve.subscriptions.window import Window
from headrace.serve.work import LOG
from headrace.views.errors import QuestionRefused
from headrace.views.rows import Row

if TYPE_CHECKING:
    from headrace.serve.served import Served

__all__ = ["Feed", "Follower"]

_ENDS_S = 1.0
_DEAR_MAX = 50
"""Queries that cost more than a look at each change: an index of what changed, or rows that are kept."""

T = TypeVar("T")


class Follower(Protocol):
    """Who is told that there is something to look at."""

    wake: asyncio.Event


def _is_dear(wanted: Wanted) -> bool:
    return wanted.words is not None or wanted.limit is not None


class _Asking(NamedTuple):
    asked: float
    found: asyncio.Task[dict[int, int]]


class Feed:
    """In one event loop."""

    def __init__(self, served: Served, source: Source) -> None:
        self._served = served
        self._loop = asyncio.get_running_loop()
        self.source = source
        self.epoch = source.epoch
        self.history = History(self.epoch.place(source.standing.position), served.limits.history_bytes)
        self.shown = 0
        """Steps below this number are for subscribers to take."""
        self.over = ""
        """Why there is nothing more to come in this epoch."""
        self.fault: BaseException | None = None
        self.steps = 0
        self.followers: set[Follower] = set()
        self.idle_since = served.clock.steady()
        self._lenses: dict[Wanted, tuple[Lens, SnapshotPages]] = {}
        self._shown_at = 0.0
        self._showing: asyncio.TimerHandle | None = None
        self._moved = asyncio.Event()
        self._extending = asyncio.Lock()
        self._ends: _Asking | None = None
        self._too_much: tuple[int, Place] | None = None
        """From where on more has come since than there is room for, and the oldest step that was remembered then."""
        view = source.view
        self._tail = Tail(
            source,
            served.clock,
            standing=lambda: served.views.standing(view),
            step=lambda step: self._from_tail(self._note, step),
            over=lambda why: self._from_tail(self._end, why),
            fault=lambda error: self._from_tail(self._fail, error),
        )
        self._tail.start()

    def stop(self) -> None:
        self._tail.stop()
        if self._showing is not None:
            self._showing.cancel()

    def join(self, timeout_s: float) -> None:
        self._tail.join(timeout_s)

    @property
    def trouble(self) -> str:
        return self._tail.trouble

    # Who follows

    def enter(self, follower: Follower, wanted: Wanted) -> Lens:
        lens, _ = self._lens(wanted)
        lens.subscribers += 1
        self.followers.add(follower)
        return lens

    def leave(self, follower: Follower, lens: Lens) -> None:
        self.followers.discard(follower)
        lens.subscribers -= 1
        if lens.subscribers == 0:
            self._lenses.pop(lens.wanted, None)
        self.idle_since = self._served.clock.steady()

    def fitting(self, wanted: Wanted) -> Lens:
        """For a look ahead, by nobody who follows. Raises for a question that the view's columns do not have."""
        return self._made(wanted)[0]

    def pages(self, lens: Lens) -> SnapshotPages:
        return self._lenses[lens.wanted][1]

    @property
    def lenses(self) -> int:
        return len(self._lenses)

    def _lens(self, wanted: Wanted) -> tuple[Lens, SnapshotPages]:
        found = self._lenses.get(wanted)
        if found is None:
            dear = sum(map(_is_dear, self._lenses))
            if _is_dear(wanted) and dear >= _DEAR_MAX:
                raise TooManySubscribers(
                    f"{dear} queries with words or a limit are followed of view {self.source.view.name!r}, and that is"
                    " all at a time",
                    hint="ask for one that others follow, or for all rows that a filter leaves; or come again later",
                )
            found = self._lenses[wanted] = self._made(wanted)
        return found

    def _made(self, wanted: Wanted) -> tuple[Lens, SnapshotPages]:
        wanted.expect_fit()
        served, shape = self._served, self.source.standing.shape
        pages = SnapshotPages(served, self.source, wanted)
        having = None if wanted.words is None else self._having(wanted.words)
        if wanted.limit is None:
            return Lens(wanted, self.epoch, shape, self.history, served.clock, having), pages
        return Window(wanted, self, shape, served.clock, pages.first, having), pages

    def _having(self, words: str) -> Having:
        view = self.source.view
        if not isinstance(view.store, Search):
            raise QuestionRefused(
                f"view {view.name!r} has no full-text index",
                hint="keep it in one beside: app.view(..., store=Search())",
            )
        from headrace.views.search.matching import WordMatcher

        matcher = WordMatcher(self.source.standing.shape, self.epoch.searched, words)

        async def having(rows: list[Row]) -> set[int]:
            ask = functools.partial(matcher.matching, rows)
            return await self._served.work.run(ask, self._served.limits.read_s)

        return having

    # What comes

    def _from_tail(self, tell: Callable[[T], None], told: T) -> None:
        # Where the loop is closed there is nobody left to tell.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(tell, told)

    def _note(self, step: Step) -> None:
        self.history.append(step)
        self.steps += 1
        self._tell_moved()
        if self._showing is None:
            wait_s = self._shown_at + self._served.limits.frame_s - self._loop.time()
            if wait_s <= 0:
                self._show()
            else:
                self._showing = self._loop.call_later(wait_s, self._show)

    def _show(self) -> None:
        self._showing = None
        self._shown_at = self._loop.time()
        self.shown = self.history.next
        self.wake_all()

    def wake_all(self) -> None:
        for one in self.followers:
            one.wake.set()

    def _tell_moved(self) -> None:
        done, self._moved = self._moved, asyncio.Event()
        done.set()

    def _end(self, why: str) -> None:
        self.over = why
        self._show()
        self._tell_moved()

    def _fail(self, error: BaseException) -> None:
        self.fault = error
        self._end("its reader has failed")

    # Where somebody is

    async def resume(self, place: Place, known_ms: int) -> None:
        """Returns when what is remembered has the place in it; raises ``CursorOld`` if it cannot."""
        if not self.history.end.covers(place):
            await self._expect_possible(place)
            await self.reach(place)
        if not place.covers(self.history.begin):
            await self._extend(place, known_ms)

    async def reach(self, place: Place) -> None:
        """Until the tail has come so far; a store, or another server, may have been there before."""
        try:
            async with asyncio.timeout(self._served.limits.read_s):
                while not self.history.end.covers(place) and not self.over:
                    await self._moved.wait()
        except TimeoutError:
            raise NotServing(
                f"the log of view {self.source.view.name!r} was not read as far as its store is: {self.trouble}",
                hint="ask again in a moment",
            ) from None
        if not self.history.end.covers(place):
            raise NotServing(f"view {self.source.view.name!r}: {self.over}", hint="ask again in a moment")

    async def _expect_possible(self, place: Place) -> None:
        """A place that the log has not come to is of a log that has lost its end, or of nobody."""
        came = self._served.clock.steady()
        for least in (came - _ENDS_S, came):
            ends = await self._log_ends(least)
            wrong = [one for one, at in place.offsets.items() if at > ends.get(one, 0)]
            if not wrong:
                return
        raise CursorOld(f"partition {wrong[0]} of the log ends at {ends.get(wrong[0], 0)}, before the cursor")

    async def _log_ends(self, least: float) -> dict[int, int]:
        """As of a moment that is no earlier. Those who come when a server is back come together, and ask once."""
        asking = self._ends
        if asking is None or asking.asked < least:
            cluster, topic = self.source.cluster, self.epoch.topic
            read = functools.partial(cluster.ends, topic, committed=False)
            found = asyncio.create_task(self._served.work.run(read, self._served.limits.read_s, LOG))
            asking = self._ends = _Asking(self._served.clock.steady(), found)
        try:
            return await asyncio.shield(asking.found)
        except HeadraceError:
            # Whoever comes next asks again.
            if self._ends is asking:
                self._ends = None
            raise

    async def _extend(self, place: Place, known_ms: int) -> None:
        """One at a time: who waits here may find that another has read it already."""
        async with self._extending:
            for _ in range(3):
                begin, first = self.history.begin, self.history.first
                if place.covers(begin):
                    return
                # Who is sent away for being slow comes again, and seldom alone.
                known, limit = self._too_much or (first, None)
                if known == first and limit is not None and place.begins_before(limit):
                    raise TooMuchSince("more has changed since than can be told again")
                read = functools.partial(
                    backfill,
                    *(self.source, begin, place, known_ms),
                    self.history.room_bytes,
                    self._served.clock.now_ms(),
                )
                try:
                    steps = await self._served.work.run(read, self._served.limits.read_s, LOG)
                except TooMuchSince:
                    self._too_much = (first, place)
                    raise
                # Meanwhile the oldest steps may have made room for new ones.
                if self.history.first == first:
                    self.history.prepend(steps)
                    return
        raise CursorOld("what came behind it is forgotten faster than it can be read again")
