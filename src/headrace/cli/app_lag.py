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
from headrace.ops.lag.app_readers import AppReaders
from headrace.ops.lag.meter import LagMeter
from headrace.ops.lag.reader import ViewPlace

if TYPE_CHECKING:
    from headrace.app import App
    from headrace.client.cluster import Cluster
    from headrace.model.flow import Flow
    from headrace.model.view import View
    from headrace.ops.lag.lag import Lag

__all__ = ["app_lags", "stored_readers"]


def stored_readers(cluster: Cluster, app: App, data: Path) -> AppReaders:
    def progress_of(flow: Flow) -> Progress | None:
        return current(cluster, flow.progress_topic)

    def place_of(view: View) -> ViewPlace:
        parts = known_parts(app, view, data)
        state, serving = state_of(parts), parts.get("serving")
        if serving is None:
            return ViewPlace(state)
        return ViewPlace(
            state, serving.topic, serving.offsets, serving.generation, serving.batch, serving.dead
        )

    return AppReaders(cluster, app, progress_of, place_of)


def app_lags(cluster: Cluster, app: App, data: Path, over_s: float) -> Iterator[list[Lag]]:
    """Again and again. The first is of two looks ``over_s`` apart: one does not tell how fast anything is read."""
    readers = stored_readers(cluster, app, data)
    with contextlib.closing(readers), contextlib.closing(LagMeter(cluster)) as meter:
        if over_s:
            meter.look(readers())
            time.sleep(over_s)
        while True:
            yield meter.look(readers())
