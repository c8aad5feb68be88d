"""Where every flow, view and group of an app is, whoever knows it.

A flow whose progress cannot be read, or a view whose store cannot be, is one of which nothing is known: it must not
keep anybody from seeing how far the others are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from headrace.app import App
from headrace.client.cluster import Cluster
from headrace.client.errors import LogError
from headrace.client.progress_log import Progress
from headrace.clock import SystemClock
from headrace.errors import HeadraceError
from headrace.model.flow import Flow
from headrace.model.topic import Topic
from headrace.model.view import View
from headrace.ops.lag.groups import Groups
from headrace.ops.lag.reader import Reader, ViewPlace, flow_reader, view_reader

__all__ = ["AppReaders"]

_Newest = Mapping[str, Progress | None]


class AppReaders:
    """Calling it says where all of them are now; the flows and views as the two functions know it."""

    def __init__(
        self,
        cluster: Cluster,
        app: App,
        progress_of: Callable[[Flow], Progress | None],
        place_of: Callable[[View], ViewPlace],
        *,
        with_groups: bool = True,
    ) -> None:
        self._app = app
        self._progress_of = progress_of
        self._place_of = place_of
        self._groups = Groups(cluster, SystemClock()) if with_groups else None

    def close(self) -> None:
        if self._groups is not None:
            self._groups.close()

    def __call__(self) -> list[Reader]:
        newest: dict[str, Progress | None] = {}
        unknown: dict[str, str] = {}
        for flow in self._app.flows:
            try:
                newest[flow.name] = self._progress_of(flow)
            except LogError:
                raise
            except HeadraceError as error:
                newest[flow.name], unknown[flow.name] = None, error.message
        found = [self._flow(flow, newest, unknown.get(flow.name)) for flow in self._app.flows]
        found += [self._view(view, newest) for view in self._app.views]
        return found + self._groups.readers(self._topics(newest)) if self._groups else found

    def _flow(self, flow: Flow, newest: _Newest, unknown: str | None) -> Reader:
        if unknown is not None:
            return Reader("flow", flow.name, unknown, known=False)
        at = newest[flow.name]
        if at is not None:
            return flow_reader(flow.name, at.generation, at.last)
        # Once it is begun, it will read all that is there.
        topics = tuple(self._log_name(topic, newest) for topic in flow.streams)
        return Reader("flow", flow.name, "not begun", topics=topics, begun=False)

    def _view(self, view: View, newest: _Newest) -> Reader:
        try:
            place = self._place_of(view)
        except LogError:
            raise
        except HeadraceError as error:
            return Reader("view", view.name, error.message, known=False)
        if not place.topic:
            topics = (self._log_name(view.topic, newest),)
            return Reader("view", view.name, place.state, topics=topics, begun=False)
        writer = self._app.writer_of(view.topic)
        return view_reader(view.name, place, newest[writer.name] if writer else None)

    def _log_name(self, topic: Topic, newest: _Newest) -> str:
        """Of a topic that a flow writes, its newest generation."""
        writer = self._app.writer_of(topic)
        at = newest.get(writer.name) if writer else None
        return at.generation.output if at else topic.name

    def _topics(self, newest: _Newest) -> set[str]:
        """Whose readers belong to the app: what is declared, what was rebuilt, and what lies beside it."""
        app = self._app
        names = {topic.name for topic in app.topics}
        names |= {self._log_name(topic, newest) for topic in app.topics}
        for flow in app.flows:
            names |= {flow.progress_topic, flow.late_topic, flow.dead_topic}
        return names | {view.dead_topic for view in app.views}
