"""Pages of a view's rows for snapshots, read from the store, each at the position that the store has then.

Who asks for a page while it is being read, or within a moment after, gets the same one: a thousand who come at once are
one question to the store. A page that is a moment old is as good: what has changed since comes from the log.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headrace.model.store import Postgres, SQLite
from headrace.serve.cursor import place_text
from headrace.serve.subscriptions.ranking import Ranked
from headrace.serve.subscriptions.source import Source
from headrace.serve.subscriptions.wanted import Wanted
from headrace.serve.subscriptions.window import FirstRows
from headrace.views.position import Standing

if TYPE_CHECKING:
    from headrace.serve.served import Served

__all__ = ["SnapshotPage", "SnapshotPages"]

_KEPT = 4
_KEPT_S = 2.0
_ROWS = 500
_ROWS_SCANNED = 10_000
"""Where a store looks at all rows for each page."""


@dataclass(frozen=True, slots=True)
class SnapshotPage:
    standing: Standing
    rows: list[tuple[bytes, bytes]]
    """Keys and rows, as messages have them."""
    next: str | None
    """Behind what the next page begins; None if this is the last."""


class SnapshotPages:
    """In one event loop."""

    def __init__(self, served: Served, source: Source, wanted: Wanted) -> None:
        self._served = served
        self._source = source
        self._wanted = wanted
        by_index = isinstance(source.view.store, (SQLite, Postgres)) and wanted.sort is None
        self._limit = _ROWS if by_index else _ROWS_SCANNED
        self._kept: OrderedDict[str, tuple[asyncio.Task[SnapshotPage], float]] = OrderedDict()

    async def get(self, after: str) -> SnapshotPage:
        """Behind a place in the order of the question; an empty text for the first."""
        now = self._served.clock.steady()
        kept = self._kept.get(after)
        if kept is None or (kept[0].done() and now - kept[1] > _KEPT_S):
            task = asyncio.create_task(self._read(after))
            task.add_done_callback(lambda task: self._forget_failed(after, task))
            kept = self._kept[after] = (task, now)
            self._kept.move_to_end(after)
            while len(self._kept) > _KEPT:
                self._kept.popitem(last=False)
        return await asyncio.shield(kept[0])

    async def first(self, count: int) -> FirstRows:
        """Without pages, as the store has them now."""
        limit_s = self._served.limits.read_s
        return await self._served.work.run(
            lambda: self._first(count, limit_s), limit_s, self._source.view.store
        )

    def _first(self, count: int, limit_s: float) -> FirstRows:
        asked = self._served.views.ask(self._source.view, self._wanted.question("", count), limit_s)
        if not self._source.epoch.has(asked.standing):
            return FirstRows(asked.standing, [], False)
        written = self._source.decoding.apart().written
        rows = ((written(row), row) for row in asked.rows)
        return FirstRows(asked.standing, [Ranked(key, row, text) for (key, text), row in rows], asked.more)

    def _forget_failed(self, after: str, task: asyncio.Task[SnapshotPage]) -> None:
        if task.cancelled() or task.exception() is not None:
            kept = self._kept.get(after)
            if kept is not None and kept[0] is task:
                del self._kept[after]

    async def _read(self, after: str) -> SnapshotPage:
        limit_s = self._served.limits.read_s
        return await self._served.work.run(
            lambda: self._ask(after, limit_s), limit_s, self._source.view.store
        )

    def _ask(self, after: str, limit_s: float) -> SnapshotPage:
        question = self._wanted.question(after, self._limit)
        asked = self._served.views.ask(self._source.view, question, limit_s)
        standing = asked.standing
        following = None
        if asked.more and asked.rows:
            following = place_text(standing.shape, asked.question.order, asked.rows[-1])
        if not self._source.epoch.has(standing):
            return SnapshotPage(standing, [], None)
        written = self._source.decoding.apart().written
        return SnapshotPage(standing, [written(row) for row in asked.rows], following)
