"""How far behind an app's flows, views and groups are, for whoever does not run them.

Flows and groups are asked of the log, whoever runs them; views of their stores. Being late is no fault: what a view
serves is always the state after some batch. How late it is must be seen.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.cli.view.stored import known_parts, state_of
from headrace.client.progress_log import Progress, current
from headrace.clock import SystemClock
from headrace.ops.lag.app_topics import log_name, topics_of, unbegun_flow
from headrace.ops.lag.groups import Groups
from headrace.ops.lag.meter import LagMeter
from headrace.ops.lag.reader import Reader, flow_reader, view_reader

if TYPE_CHECKING:
    from headrace.app import App
    from headrace.client.cluster import Cluster
    from headrace.model.view import View
    from headrace.ops.lag.lag import Lag

__all__ = ["AppReaders", "app_lags"]


class AppReaders:
    """Calling it says where every flow, view and group of the app is now."""

    def __init__(self, cluster: Cluster, app: App, data: Path) -> None:
        self._cluster = cluster
        self._app = app
        self._data = data
        self._groups = Groups(cluster, SystemClock())

    def __call__(self) -> list[Reader]:
        app = self._app
        progress = {flow.name: current(self._cluster, flow.progress_topic) for flow in app.flows}
        found = []
        for flow in app.flows:
            at = progress[flow.name]
            if at is None:
                topics = tuple(unbegun_flow(app, flow, progress))
                found.append(Reader("flow", flow.name, "not begun", topics=topics, begun=False))
            else:
                found.append(flow_reader(flow.name, at.generation, at.last))
        for view in app.views:
            writer = app.writer_of(view.topic)
            newest = progress[writer.name] if writer else None
            found.append(self._view(view, newest, log_name(app, view.topic, progress)))
        return found + self._groups.readers(topics_of(app, progress))

    def _view(self, view: View, newest: Progress | None, topic: str) -> Reader:
        parts = known_parts(self._app, view, self._data)
        state, serving = state_of(parts), parts.get("serving")
        if serving is None:
            return Reader("view", view.name, state, topics=(topic,), begun=False)
        return view_reader(
            view.name,
            state,
            serving.topic,
            serving.offsets,
            generation=serving.generation,
            batch=serving.batch,
            newest=newest,
            dead=serving.dead,
        )


def app_lags(cluster: Cluster, app: App, data: Path, over_s: float) -> Iterator[list[Lag]]:
    """Again and again. The first is of two looks ``over_s`` apart: one does not tell how fast anything is read."""
    readers = AppReaders(cluster, app, data)
    with contextlib.closing(LagMeter(cluster)) as meter:
        if over_s:
            meter.look(readers())
            time.sleep(over_s)
        while True:
            yield meter.look(readers())
