"""Where the parts of a running app are, from what they know themselves; the log is asked only for the rest."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from headrace.app import App
from headrace.client.cluster import Cluster
from headrace.client.progress_log import Progress, current
from headrace.model.flow import Flow
from headrace.model.view import View
from headrace.ops.lag.app_readers import AppReaders
from headrace.ops.lag.reader import ViewPlace
from headrace.views.follower import Follower

if TYPE_CHECKING:
    from headrace.flow.runner import FlowRunner

__all__ = ["run_readers"]


def run_readers(
    cluster: Cluster, app: App, flows: Sequence[FlowRunner], followers: Sequence[Follower]
) -> AppReaders:
    """``flows`` and ``followers`` may still be growing."""

    def progress_of(flow: Flow) -> Progress | None:
        opened = next((one.current for one in list(flows) if one.status.name == flow.name), None)
        if opened is None:
            return current(cluster, flow.progress_topic)
        return Progress(opened.generation, opened.last, 0)

    def place_of(view: View) -> ViewPlace:
        status = next((one.status for one in list(followers) if one.view.name == view.name), None)
        position = status.position if status else None
        if status is None or position is None:
            return ViewPlace(status.state if status else "not followed")
        return ViewPlace(
            status.state,
            position.topic,
            position.offsets,
            position.generation,
            position.batch,
            position.dead,
        )

    return AppReaders(cluster, app, progress_of, place_of)
