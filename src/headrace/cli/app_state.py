"""The state and lag of an app's flows, views and groups, read by a process that does not run them.

The positions of flows and groups come from the log. The positions of views come from their stores.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.ops.dead.letter_index import index_path
from headrace.ops.lag.monitor import LagMonitor
from headrace.ops.lag.reader import ViewPosition

if TYPE_CHECKING:
    from headrace.app import App
    from headrace.client.cluster import Cluster
    from headrace.client.progress import Progress
    from headrace.model.declarations import Flow, View
    from headrace.ops.lag.lag import Lag
    from headrace.stores.position import ViewState

__all__ = ["StoredPositions", "app_lags", "lag_monitor", "state_of", "view_states"]


def view_states(app: App, view: View, data: Path) -> dict[str, ViewState]:
    """Return the view's state by part (``Part``); empty if no follower has started the view yet."""
    from headrace.stores.registry import open_reader

    reader = open_reader(view, app.name, data)
    if reader is None:
        return {}
    with contextlib.closing(reader):
        return {stored.part.value: stored.state for stored in reader.parts(view.name)}


def state_of(parts: dict[str, ViewState]) -> str:
    if "building" in parts:
        return "rebuilding" if "serving" in parts else "building"
    return "serving" if "serving" in parts else "not built"


class StoredPositions:
    def __init__(self, app: App, data: Path) -> None:
        self._app = app
        self._data = data

    def running_progress(self, flow: Flow) -> Progress | None:
        return None

    def view_position(self, view: View) -> ViewPosition:
        parts = view_states(self._app, view, self._data)
        serving = parts.get("serving")
        return ViewPosition.of(state_of(parts), serving.position if serving else None)


def lag_monitor(cluster: Cluster, app: App, data: Path, timeout_s: float | None = None) -> LagMonitor:
    letters = index_path(data, app.name) if data.is_dir() else None
    return LagMonitor(cluster, app, StoredPositions(app, data), letters, timeout_s=timeout_s)


def app_lags(cluster: Cluster, app: App, data: Path, interval_s: float) -> Iterator[list[Lag]]:
    """Measure repeatedly. Rates need two measurements, so an unused measurement comes first, ``interval_s`` before the
    first result.
    """
    with contextlib.closing(lag_monitor(cluster, app, data)) as monitor:
        if interval_s:
            _measure(monitor)
            time.sleep(interval_s)
        while True:
            yield _measure(monitor)


def _measure(monitor: LagMonitor) -> list[Lag]:
    return [*monitor.measure(full=True).lags.values(), *monitor.measure_groups()]
