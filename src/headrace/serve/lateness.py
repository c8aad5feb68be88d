"""How far each view is behind the log, measured now and then: a late view is right as far as it goes, and says so."""

from __future__ import annotations

import asyncio
from typing import Any

from headrace.app import App
from headrace.client.cluster import Cluster
from headrace.client.progress_log import Progress, current
from headrace.clock import Clock
from headrace.errors import HeadraceError
from headrace.model.flow import Flow
from headrace.model.view import View
from headrace.ops.lag.app_readers import AppReaders
from headrace.ops.lag.lag import Lag
from headrace.ops.lag.meter import LagMeter
from headrace.ops.lag.reader import ViewPlace
from headrace.serve.views import Views
from headrace.serve.work import LOG, Work

__all__ = ["Lateness"]

_GOOD_FOR_S = 2.0
_LOOK_S = 10.0


class Lateness:
    """One look at a time serves all who ask meanwhile."""

    def __init__(self, app: App, cluster: Cluster, views: Views, work: Work, clock: Clock) -> None:
        self._views = views
        self._work = work
        self._clock = clock
        self._readers = AppReaders(cluster, app, self._progress, self._place, with_groups=False)
        self._cluster = cluster
        self._meter = LagMeter(cluster, clock)
        self._looking = asyncio.Lock()
        self._looked = float("-inf")
        self._lags: dict[str, Lag] = {}
        self.trouble: HeadraceError | None = None
        """Why the log does not say, where it does not."""

    def close(self) -> None:
        self._meter.close()

    async def look(self) -> dict[str, Lag]:
        """By view; an empty one if the log does not answer."""
        async with self._looking:
            if self._clock.steady() - self._looked > _GOOD_FOR_S:
                try:
                    self._lags = await self._work.run(self._measured, _LOOK_S, LOG)
                    self.trouble = None
                except HeadraceError as error:
                    self._lags, self.trouble = {}, error
                self._looked = self._clock.steady()
            return self._lags

    async def of(self, view: str) -> dict[str, Any]:
        """For an answer about the view."""
        lag = (await self.look()).get(view)
        return {
            "behind_records": lag.records if lag else None,
            "behind_seconds": None if lag is None or lag.age_s is None else round(lag.age_s, 3),
        }

    def _measured(self) -> dict[str, Lag]:
        views = [reader for reader in self._readers() if reader.what == "view"]
        return {lag.reader.name: lag for lag in self._meter.look(views)}

    def _progress(self, flow: Flow) -> Progress | None:
        return current(self._cluster, flow.progress_topic)

    def _place(self, view: View) -> ViewPlace:
        standing = self._views.standing(view)
        if standing is None:
            return ViewPlace("not serving")
        at = standing.position
        return ViewPlace("serving", at.topic, at.offsets, at.generation, at.batch, at.dead)
