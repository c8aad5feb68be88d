"""Waiting until a view has come as far as a token tells: whoever waits for one view shares one look at its store."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from headrace.clock import Clock
from headrace.errors import HeadraceError
from headrace.model.view import View
from headrace.serve.coverage import Coverage
from headrace.serve.errors import Draining, TooLate
from headrace.serve.position_json import position_json
from headrace.serve.token import Token
from headrace.serve.views import Views
from headrace.serve.work import Work
from headrace.views.position import Position

__all__ = ["Waiting"]

_LOOK_EVERY_S = 0.01
_LOOK_S = 10.0


@dataclass(slots=True)
class _Watched:
    """One view that is waited for."""

    view: View
    waiters: int = 0
    position: Position | None = None
    trouble: HeadraceError | None = None
    looked: asyncio.Event = field(default_factory=asyncio.Event)
    task: asyncio.Task[None] | None = None


class Waiting:
    """In one event loop."""

    def __init__(self, views: Views, coverage: Coverage, work: Work, clock: Clock) -> None:
        self._views = views
        self._coverage = coverage
        self._work = work
        self._clock = clock
        self._watched: dict[str, _Watched] = {}
        self.draining = False
        self.waiters = 0

    def covers(self, view: View, position: Position, token: Token | None) -> bool:
        return token is None or self._coverage.covers(view, position, token)

    async def until(self, view: View, token: Token, deadline: float) -> None:
        """Returns when what the view shows has all of it; the position may be past it already when it is read."""
        watched = self._watched.setdefault(view.name, _Watched(view))
        watched.waiters += 1
        self.waiters += 1
        if watched.task is None:
            watched.task = asyncio.create_task(self._look_on(watched))
        try:
            await self._until(watched, token, deadline)
        finally:
            watched.waiters -= 1
            self.waiters -= 1

    async def _until(self, watched: _Watched, token: Token, deadline: float) -> None:
        looks = 0
        while True:
            looked = watched.looked
            # The first look may have begun before this one came.
            if looks:
                if watched.position is not None and self._coverage.covers(
                    watched.view, watched.position, token
                ):
                    return
                left = deadline - self._clock.steady()
                if self.draining:
                    raise Draining("the server is about to stop", hint="ask again in a moment")
                if left <= 0:
                    raise late(watched.view, watched.position, watched.trouble)
            try:
                wait_s = max(0.0, deadline - self._clock.steady()) if looks else _LOOK_S
                async with asyncio.timeout(max(_LOOK_EVERY_S, wait_s)):
                    await looked.wait()
            except TimeoutError:
                raise late(watched.view, watched.position, watched.trouble) from None
            looks += 1

    async def _look_on(self, watched: _Watched) -> None:
        try:
            while watched.waiters:
                try:
                    watched.position = await self._work.run(
                        lambda: self._look(watched.view), _LOOK_S, watched.view.store
                    )
                    watched.trouble = None
                except HeadraceError as error:
                    watched.trouble = error
                self._tell(watched)
                if self.draining:
                    # Who has it already was told; nobody waits for more.
                    return
                await asyncio.sleep(_LOOK_EVERY_S)
        finally:
            self._watched.pop(watched.view.name, None)
            watched.task = None
            self._tell(watched)

    @staticmethod
    def _tell(watched: _Watched) -> None:
        done, watched.looked = watched.looked, asyncio.Event()
        done.set()

    def _look(self, view: View) -> Position | None:
        # The store first: what its position tells of is then in the progress.
        standing = self._views.standing(view)
        self._coverage.look(view)
        return standing.position if standing and not standing.fault else None


def late(view: View, position: Position | None, trouble: HeadraceError | None = None) -> TooLate:
    """With what was reached, so that whoever asked can tell how late it is."""
    why = f": {trouble.message}" if trouble is not None else ""
    return TooLate(
        f"view {view.name!r} does not show yet what was waited for{why}",
        hint="ask again, or wait longer; nothing is lost",
        members={"view": view.name, "position": position_json(position) if position else None},
    )
