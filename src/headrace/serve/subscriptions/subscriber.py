"""One who follows: from the first message to the last, whatever carries them.

It holds no queue. It is at a step; when it can send, it takes what came behind that as one frame, which is made once
for all who are there. Who is slow takes more steps at a time, and who is slower than what is remembered is sent away.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING

from headrace.errors import HeadraceError
from headrace.model.schema_json import fields_to_json
from headrace.serve.errors import Draining
from headrace.serve.subscriptions.bookmark import Bookmark
from headrace.serve.subscriptions.errors import CursorOld, SlowReader
from headrace.serve.subscriptions.feed import Feed
from headrace.serve.subscriptions.lens import Lens
from headrace.serve.subscriptions.message import Message, message
from headrace.serve.subscriptions.place import Place
from headrace.serve.subscriptions.snapshot import Snapshot
from headrace.serve.subscriptions.wanted import Wanted
from headrace.serve.subscriptions.window import Window

if TYPE_CHECKING:
    from headrace.serve.served import Served

__all__ = ["Gone", "Subscriber"]

_EMPTY_S = 1.0
"""How often a frame is told that has nothing in it but the position."""


class Gone(Exception):
    """There is nobody left to tell."""


class Subscriber:
    """``carrier`` is how messages reach it, for the counts. ``heals`` says whether an old cursor is answered with a
    snapshot; it is refused otherwise.
    """

    def __init__(
        self,
        served: Served,
        wanted: Wanted,
        cursor: str | None,
        carrier: str,
        *,
        token: str | None,
        token_id: str,
        heals: bool,
    ) -> None:
        self._served = served
        self.wanted = wanted
        self.carrier = carrier
        self.token = token
        """By which it was let in; None where none is needed."""
        self.token_id = token_id
        self._heals = heals
        self._bookmark = None if cursor is None else Bookmark.told(cursor, wanted)
        self.wake = asyncio.Event()
        self.last_cursor = cursor
        """Behind what it has been told whole."""
        self.told_steady = served.clock.steady()
        self._moved_steady = self.told_steady
        self._ended: BaseException | None = None
        self.answered_by = ""
        """The view that the name stands for now, where that is known."""

    def end(self, why: BaseException) -> None:
        """Soon, with what it is then told."""
        self._ended = self._ended or why
        self.wake.set()

    def sent(self, one: Message) -> None:
        """By whoever carries it."""
        self.told_steady = self._served.clock.steady()
        if one.cursor is not None:
            self.last_cursor = one.cursor
        self._served.subscriptions.counts.sent(self.carrier, one)

    async def prepare(self) -> None:
        """Raises what can be known before anything is told."""
        feed = await self._open()
        lens = feed.fitting(self.wanted)
        if self._bookmark is not None:
            try:
                place = self._bookmark.place(feed.epoch)
                await feed.resume(place, self._bookmark.told_ms)
                lens.expect_near(place)
            except CursorOld:
                if not self._heals:
                    self._served.subscriptions.counts.resumes["too old"] += 1
                    raise

    async def messages(self) -> AsyncGenerator[Message]:
        """Ends by raising: what there is to say at the end, or ``Gone``."""
        counts = self._served.subscriptions.counts
        while True:
            feed = await self._open()
            lens = feed.enter(self, self.wanted)
            try:
                async for one in self._told(feed, lens):
                    yield one
            finally:
                feed.leave(self, lens)
            self._bookmark = None
            counts.resets["epoch" if feed.over else "switched"] += 1
            yield _reset(CursorOld(feed.over or "the name stands for another view now"))

    async def _open(self) -> Feed:
        self._expect_wanted()
        return await self._served.subscriptions.feed(self.wanted.view)

    def _expect_wanted(self) -> None:
        if self._ended is not None:
            raise self._ended
        if self._served.draining:
            raise Draining("the server is about to stop", hint="come again, with the cursor")

    async def _told(self, feed: Feed, lens: Lens) -> AsyncGenerator[Message]:
        """Until the feed is over."""
        counts = self._served.subscriptions.counts
        at: int | None = None
        if self._bookmark is not None:
            try:
                place = self._bookmark.place(feed.epoch)
                await feed.resume(place, self._bookmark.told_ms)
                # Taken before anything is waited for: what is remembered may change then.
                frame = await lens.behind(place, self._bookmark.told_ms)
            except CursorOld as error:
                counts.resumes["too old"] += 1
                if not self._heals:
                    raise
                yield _reset(error)
            else:
                counts.resumes["resumed"] += 1
                at = frame.next
                yield self._hello(feed, lens, place)
                if frame.place != place:
                    for one in frame.messages:
                        yield one
        if at is None:
            yield self._hello(feed, lens, None)
            if isinstance(lens, Window):
                messages, at = await lens.first(feed.shown)
                for one in messages:
                    yield one
            else:
                snapshot = Snapshot(feed, lens)
                async for one in snapshot.messages():
                    yield one
                at = snapshot.next
        while True:
            self._expect_wanted()
            if self.answered_by not in ("", feed.source.view.name):
                return
            if feed.fault is not None:
                raise feed.fault
            if at < feed.history.first:
                raise SlowReader(
                    "changes came faster than they were taken, and what came first is forgotten",
                    hint="come again, with the cursor",
                )
            now = self._served.clock.steady()
            if at < feed.shown:
                frame = await lens.frame(at, feed.shown)
                if not frame.is_empty or feed.over or now - self._moved_steady >= _EMPTY_S:
                    self._moved_steady = now
                    at = frame.next
                    for one in frame.messages:
                        yield one
                    continue
            elif feed.over:
                return
            self.wake.clear()
            if now - self.told_steady >= self._served.limits.heartbeat_s:
                yield self._heartbeat(feed, lens, at)
                continue
            await self.wake.wait()

    def _hello(self, feed: Feed, lens: Lens, place: Place | None) -> Message:
        shape = feed.source.standing.shape
        columns = [{**one, "key": one["name"] in shape.key} for one in fields_to_json(shape.fields)]
        told = {
            "view": self.wanted.view,
            "answered_by": feed.source.view.name,
            "key": list(shape.key),
            "columns": columns,
            "resumed": place is not None,
            "heartbeat_s": self._served.limits.heartbeat_s,
        }
        if self.wanted.sort is not None or self.wanted.limit is not None:
            told["order"] = [{"column": one.column, "descending": one.descending} for one in lens.order]
        return message("hello", told if place is None else {**told, "cursor": lens.cursor(place)})

    def _heartbeat(self, feed: Feed, lens: Lens, at: int) -> Message:
        place = feed.history.border(at)
        return message(
            "heartbeat", {"cursor": lens.cursor(place), "position": feed.epoch.position_json(place)}
        )


def _reset(error: HeadraceError) -> Message:
    told = {"status": 409, "code": error.code, "detail": error.message, "next": error.hint}
    return message("reset", told)
