"""The app as a graph: what is written from outside, topics, flows and views, and which way data moves between them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from headrace.app import App
from headrace.model.flow import DELIVERIES, Flow
from headrace.model.topic import Topic
from headrace.model.view import View

__all__ = ["Graph", "Node", "flow_id", "graph_of", "source_id", "topic_id", "view_id"]

_OUTSIDE = "written from outside"


def source_id(topic: str) -> str:
    return f"source:{topic}"


def topic_id(topic: str) -> str:
    return f"topic:{topic}"


def flow_id(flow: str) -> str:
    return f"flow:{flow}"


def view_id(view: str) -> str:
    return f"view:{view}"


@dataclass(frozen=True, slots=True)
class Node:
    id: str
    kind: Literal["source", "topic", "flow", "view"]
    name: str
    about: str
    section_path: tuple[str, ...]
    """Where the page tells more of it."""

    def told(self) -> dict[str, object]:
        return {name: getattr(self, name) for name in self.__slots__}


@dataclass(frozen=True, slots=True)
class Graph:
    app: str
    nodes: Sequence[Node]
    edges: Sequence[tuple[str, str]]

    def told(self) -> dict[str, object]:
        return {
            "app": self.app,
            "nodes": [one.told() for one in self.nodes],
            "edges": [{"from": begin, "to": end} for begin, end in self.edges],
        }


def graph_of(app: App, feed: str = "") -> Graph:
    """``feed`` is what writes events beside it, where something does."""
    nodes: list[Node] = []
    edges: list[tuple[str, str]] = []
    for topic in app.topics:
        if app.writer_of(topic) is None:
            nodes.append(_source(topic, feed))
            edges.append((source_id(topic.name), topic_id(topic.name)))
        nodes.append(_topic(topic))
    for flow in app.flows:
        nodes.append(_flow(flow))
        edges += [(topic_id(topic.name), flow_id(flow.name)) for topic in flow.reads]
        edges.append((flow_id(flow.name), topic_id(flow.writes.name)))
    for view in (*app.views, *app.computed):
        nodes.append(_view(view))
        edges.append((topic_id(view.topic.name), view_id(view.name)))
    return Graph(app.name, nodes, list(dict.fromkeys(edges)))


def _source(topic: Topic, feed: str) -> Node:
    about = f"run beside the app with --feed; {topic.name} may be {_OUTSIDE} too" if feed else _OUTSIDE
    return Node(source_id(topic.name), "source", feed or _OUTSIDE, about, ("topics", topic.name))


def _topic(topic: Topic) -> Node:
    what = "a table" if topic.kind == "table" else "events"
    key = f", by {', '.join(topic.key)}" if topic.key else ""
    return Node(topic_id(topic.name), "topic", topic.name, what + key, ("topics", topic.name))


def _flow(flow: Flow) -> Node:
    how = "in real time" if flow.is_realtime else "in batches"
    about = f"{how}, {DELIVERIES[flow.latency]}"
    return Node(flow_id(flow.name), "flow", flow.name, about, ("flows", flow.name))


def _view(view: View) -> Node:
    about = f"by {', '.join(view.key)}, in {type(view.store).__name__}"
    return Node(view_id(view.name), "view", view.name, about, ("views", view.name))
