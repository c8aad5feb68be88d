"""How many rows a view has. Most stores look at every row to say so: so it is counted now and then."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path

from headrace.clock import Clock
from headrace.errors import HeadraceError
from headrace.model.store import OnRead
from headrace.model.view import View
from headrace.serve.work import Work
from headrace.views.opening import open_reader

__all__ = ["RowCounts"]

_AGAIN_S = 1.0
_SHARE = 50
"""A count is taken anew when this many times as long has passed as the last one took."""
_PATIENCE_S = 0.25


@dataclass(slots=True)
class _Counted:
    rows: int | None = None
    due: float = 0.0
    task: asyncio.Task[None] | None = None


class RowCounts:
    """In one event loop. Nobody waits for a large view: the last count is told until the next one is there."""

    def __init__(self, app: str, data: Path, work: Work, clock: Clock, read_s: float) -> None:
        self._app = app
        self._data = data
        self._work = work
        self._clock = clock
        self._read_s = read_s
        self._counted: dict[str, _Counted] = {}

    async def of(self, view: View) -> int | None:
        """None where nobody knows, or not yet."""
        if isinstance(view.store, OnRead):
            return None
        counted = self._counted.setdefault(view.name, _Counted())
        if counted.task is None and self._clock.steady() >= counted.due:
            counted.task = asyncio.create_task(self._count(view, counted))
        if counted.task is not None:
            await asyncio.wait((counted.task,), timeout=_PATIENCE_S)
        return counted.rows

    async def _count(self, view: View, counted: _Counted) -> None:
        began = self._clock.steady()
        try:
            counted.rows = await self._work.run(lambda: self._look(view), self._read_s, view.store)
        except HeadraceError:
            # Whoever lists the views says what is wrong with the store.
            counted.rows = None
        finally:
            took_s = self._clock.steady() - began
            counted.due = began + max(_AGAIN_S, took_s * _SHARE)
            counted.task = None

    def _look(self, view: View) -> int | None:
        reader = open_reader(view, self._app, self._data)
        if reader is None:
            return None
        try:
            return reader.count(view.name)
        finally:
            reader.close()
