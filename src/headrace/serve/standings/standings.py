"""Every view of the app: its store, its rows, how far it is beside the end of its topic, and whether it was proven."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from headrace.errors import HeadraceError
from headrace.model.store import OnRead
from headrace.model.view import View
from headrace.ops.lag.lag import Lag
from headrace.serve.position_json import position_json
from headrace.serve.standings.behind import behind_json
from headrace.serve.standings.row_counts import RowCounts
from headrace.serve.standings.verdicts import Verdicts
from headrace.serve.work import LOG
from headrace.views.position import Standing

if TYPE_CHECKING:
    from headrace.serve.served import Served

__all__ = ["Standings"]

_GOOD_FOR_S = 0.5
_AT_ONCE = 4
"""Views that are asked at the same time: the threads are for whoever reads rows."""


class Standings:
    """In one event loop. One look serves all who ask meanwhile."""

    def __init__(self, served: Served) -> None:
        self._served = served
        limits = served.limits
        self._rows = RowCounts(served.app.name, served.data, served.work, served.clock, limits.read_s)
        self._verdicts = Verdicts(served.cluster, served.app.name)
        self._looking = asyncio.Lock()
        self._looked = float("-inf")
        self._told: dict[str, dict[str, Any]] = {}

    async def look(self) -> dict[str, dict[str, Any]]:
        """By the names that views are asked by."""
        clock = self._served.clock
        async with self._looking:
            if clock.steady() - self._looked > _GOOD_FOR_S:
                self._told = await self._all()
                self._looked = clock.steady()
            return self._told

    async def _all(self) -> dict[str, dict[str, Any]]:
        served, room = self._served, asyncio.Semaphore(_AT_ONCE)
        lags = await served.lateness.look()
        try:
            verdicts = await served.work.run(self._verdicts.look, served.limits.read_s, LOG)
        except HeadraceError:
            verdicts = {}

        async def one(name: str) -> dict[str, Any]:
            async with room:
                view = served.views.answering(name)
                return await self._one(name, view, lags.get(view.name), verdicts.get(view.name))

        names = served.views.names
        return dict(zip(names, await asyncio.gather(*map(one, names)), strict=True))

    async def _one(
        self, name: str, view: View, lag: Lag | None, verified: dict[str, Any] | None
    ) -> dict[str, Any]:
        served = self._served
        writer = served.app.writer_of(view.topic)
        standing = None
        try:
            standing = await served.work.run(
                lambda: served.views.standing(view), served.limits.read_s, view.store
            )
        except HeadraceError as error:
            state, why = "not readable", error.message
        else:
            state, why = _state(view, standing)
        position = standing.position if standing is not None else None
        return {
            "view": name,
            "answered_by": view.name,
            "topic": view.topic.name,
            "written_by": writer.name if writer else None,
            "key": list(view.key),
            "store": type(view.store).__name__.lower(),
            "state": state,
            "why": why,
            "rows": await self._rows.of(view) if position is not None else None,
            "dead": None if position is None or isinstance(view.store, OnRead) else position.dead,
            "position": None if position is None else position_json(position),
            **behind_json(lag, position),
            "verified": verified,
        }


def _state(view: View, standing: Standing | None) -> tuple[str, str]:
    if standing is None:
        return "not serving", (
            f"there is no topic {view.topic.name!r} yet"
            if isinstance(view.store, OnRead)
            else "nobody has followed it yet: headrace run, or headrace view follow"
        )
    if standing.fault:
        return "not readable", f"it is not as it was written: {standing.fault}"
    return "serving", ""
