"""A snapshot: the rows of a view, or of a query, at one place in the log, though they are read page by page meanwhile.

Each page is of the position that the store has when it is read. Behind each comes what the log has since that position,
or since where the page before ended, if that is less far: of every key that changed the row as it is now, or that it is
gone. So behind every page all rows that were told are those of one place, and at the end that is the snapshot's. What a
subscriber must take before it is forgotten is a page, however many there are.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator

from headrace.serve.errors import NotServing
from headrace.serve.subscriptions.errors import CursorOld
from headrace.serve.subscriptions.feed import Feed
from headrace.serve.subscriptions.lens import Lens
from headrace.serve.subscriptions.message import Message, in_parts
from headrace.serve.subscriptions.place import Place

__all__ = ["Snapshot"]


class Snapshot:
    """``place`` and ``next`` are known once all messages were taken."""

    def __init__(self, feed: Feed, lens: Lens) -> None:
        self._feed = feed
        self._lens = lens
        self.place: Place = feed.history.end
        self.next = 0

    async def messages(self) -> AsyncGenerator[Message]:
        feed, lens = self._feed, self._lens
        pages = feed.pages(lens)
        after: str | None = ""
        is_first = True
        while after is not None:
            page = await pages.get(after)
            if not feed.epoch.has(page.standing):
                raise self._moved("it was rebuilt meanwhile")
            position = page.standing.position
            place = feed.epoch.place(position)
            # A page may be of a moment before what was told behind the last one: stores are behind the log.
            since, until = (place, place) if is_first else (self.place.least(place), self.place.most(place))
            await feed.reach(until)
            try:
                await feed.resume(since, max(position.complete_ms, position.stored_ms))
            except CursorOld as error:
                raise self._moved(
                    f"its rows are taken too slowly, or its store is too far behind the log: {error.message}"
                ) from error
            # Taken before anything is waited for: what is remembered now has all of it.
            changes, self.next = feed.history.joint(since, until)
            self.place = feed.history.border(self.next)
            changed = await lens.merged(changes)
            rows = [row for key, row in page.rows if key not in changed]
            rows += [row for row in changed.values() if row is not None]
            # Of the first page, what is gone was never told.
            gone = [] if is_first else [key for key, row in changed.items() if row is None]
            after, is_first = page.next, False
            told = None if after is not None else lens.told(self.place)
            for one in in_parts("snapshot", rows, gone, told):
                yield one

    def _moved(self, why: str) -> NotServing:
        return NotServing(
            f"view {self._feed.source.view.name!r} cannot be told as of one moment: {why}",
            hint="subscribe again in a moment",
        )
