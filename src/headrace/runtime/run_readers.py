"""Where the parts of a running app are, from what they know themselves; the log is asked only for the rest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from headrace.app import App
from headrace.client.cluster import Cluster
from headrace.client.progress_log import Progress, current
from headrace.clock import SystemClock
from headrace.model.view import View
from headrace.ops.lag.app_topics import log_name, topics_of, unbegun_flow
from headrace.ops.lag.groups import Groups
from headrace.ops.lag.reader import Reader, flow_reader, view_reader
from headrace.views.follower import Follower

if TYPE_CHECKING:
    from headrace.flow.runner import FlowRunner

__all__ = ["RunReaders"]


class RunReaders:
    """Calling it says where every flow, view and group is now. ``flows`` and ``followers`` may still be growing."""

    def __init__(
        self, cluster: Cluster, app: App, flows: Sequence[FlowRunner], followers: Sequence[Follower]
    ) -> None:
        self._cluster = cluster
        self._app = app
        self._flows = flows
        self._followers = followers
        self._groups = Groups(cluster, SystemClock())

    def __call__(self) -> list[Reader]:
        app = self._app
        progress = self._progress()
        states = {one.status.name: one.status.state for one in list(self._flows)}
        found = []
        for flow in app.flows:
            at = progress[flow.name]
            if at is None:
                topics = tuple(unbegun_flow(app, flow, progress))
                found.append(Reader("flow", flow.name, "not begun", topics=topics, begun=False))
            else:
                state = states.get(flow.name, "begun")
                found.append(flow_reader(flow.name, at.generation, at.last, state))
        followers = {one.view.name: one for one in list(self._followers)}
        found += [self._view(view, followers.get(view.name), progress) for view in app.views]
        return found + self._groups.readers(topics_of(app, progress))

    def _progress(self) -> dict[str, Progress | None]:
        opened = {one.status.name: one.current for one in list(self._flows)}
        found: dict[str, Progress | None] = {}
        for flow in self._app.flows:
            one = opened.get(flow.name)
            found[flow.name] = (
                current(self._cluster, flow.progress_topic)
                if one is None
                else Progress(one.generation, one.last, 0)
            )
        return found

    def _view(self, view: View, follower: Follower | None, progress: Mapping[str, Progress | None]) -> Reader:
        status = follower.status if follower else None
        position = status.position if status else None
        if status is None or position is None:
            state = status.state if status else "not followed"
            topics = (log_name(self._app, view.topic, progress),)
            return Reader("view", view.name, state, topics=topics, begun=False)
        writer = self._app.writer_of(view.topic)
        return view_reader(
            view.name,
            status.state,
            position.topic,
            position.offsets,
            generation=position.generation,
            batch=position.batch,
            newest=progress[writer.name] if writer else None,
            dead=position.dead,
        )
