"""The graph of an app: sources, topics, flows and views, and the direction of data between them.

The graph can be printed as Mermaid for pages, DOT for Graphviz and OpenLineage for catalogs. For OpenLineage
(https://openlineage.io/spec/2-0-2/OpenLineage.json), each flow and each view is a job event. The topics are datasets,
named by OpenLineage's conventions for Kafka. The graph shows the app's declarations, so the app need not run.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal

from headrace.app import App
from headrace.model.codec.scalar_text import time_text
from headrace.model.declarations import DELIVERIES, Flow, Topic, View

__all__ = [
    "Graph",
    "Node",
    "as_dot",
    "as_mermaid",
    "as_openlineage",
    "flow_id",
    "graph_of",
    "source_id",
    "topic_id",
    "view_id",
]


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
    """The path of the node's section in the web UI."""

    def to_json(self) -> dict[str, object]:
        return {name: getattr(self, name) for name in self.__slots__}


@dataclass(frozen=True, slots=True)
class Graph:
    app: str
    nodes: Sequence[Node]
    edges: Sequence[tuple[str, str]]

    def to_json(self) -> dict[str, object]:
        return {
            "app": self.app,
            "nodes": [node.to_json() for node in self.nodes],
            "edges": [{"from": begin, "to": end} for begin, end in self.edges],
        }


def graph_of(app: App, feed: str = "") -> Graph:
    """Build the graph. ``feed`` names the function of ``headrace run --feed``; empty without ``--feed``."""
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
    about = f"runs with the app (--feed); {topic.name} can also be {_OUTSIDE}" if feed else _OUTSIDE
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


_MERMAID = {"source": "([{}])", "topic": "[{}]", "flow": "{{{{{}}}}}", "view": "[({})]"}
_DOT = {"source": "oval", "topic": "box", "flow": "hexagon", "view": "cylinder"}
_SPEC = "https://openlineage.io/spec/2-0-2/OpenLineage.json#/$defs/JobEvent"
_PRODUCER = "urn:headrace"


def as_mermaid(graph: Graph) -> str:
    ids = {node.id: f"n{number}" for number, node in enumerate(graph.nodes)}
    lines = ["flowchart LR"]
    for node in graph.nodes:
        text = '"{}"'.format(node.name.replace('"', "#quot;"))
        lines.append(f"    {ids[node.id]}{_MERMAID[node.kind].format(text)}")
    lines += [f"    {ids[begin]} --> {ids[end]}" for begin, end in graph.edges]
    return "\n".join(lines) + "\n"


def as_dot(graph: Graph) -> str:
    lines = [f"digraph {_quoted(graph.app)} {{", "    rankdir=LR;"]
    for node in graph.nodes:
        lines.append(f"    {_quoted(node.id)} [label={_quoted(node.name)}, shape={_DOT[node.kind]}];")
    lines += [f"    {_quoted(begin)} -> {_quoted(end)};" for begin, end in graph.edges]
    return "\n".join([*lines, "}"]) + "\n"


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def as_openlineage(app: App, bootstrap: str, now_ms: int) -> Iterator[dict[str, Any]]:
    """Return an event per flow and view. ``bootstrap`` has the log's addresses; the first is its name."""
    log = f"kafka://{bootstrap.split(',')[0].strip()}"
    base = {
        "eventTime": time_text(datetime.fromtimestamp(now_ms / 1_000, UTC)),
        "producer": _PRODUCER,
        "schemaURL": _SPEC,
    }

    def event(job: str, inputs: list[str], output: dict[str, str]) -> dict[str, Any]:
        return {
            **base,
            "job": {"namespace": f"headrace://{app.name}", "name": job},
            "inputs": [{"namespace": log, "name": name} for name in inputs],
            "outputs": [output],
        }

    for flow in app.flows:
        reads = list(dict.fromkeys(topic.name for topic in flow.reads))
        yield event(f"flow.{flow.name}", reads, {"namespace": log, "name": flow.writes.name})
    for view in (*app.views, *app.computed):
        dataset = {
            "namespace": f"headrace://{app.name}/{type(view.store).__name__.lower()}",
            "name": view.name,
        }
        yield event(f"view.{view.name}", [view.topic.name], dataset)
