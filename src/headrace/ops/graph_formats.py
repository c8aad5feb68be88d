"""The graph of an app as others read it: Mermaid for pages, DOT for Graphviz, OpenLineage for catalogues.

OpenLineage (https://openlineage.io/spec/2-0-2/OpenLineage.json): a job event for each flow and each view, with the
topics of the log as datasets, named as its conventions name those of Kafka. It is what is declared; nothing has to run.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

from headrace.app import App
from headrace.model.texts import time_text
from headrace.ops.graph import Graph

__all__ = ["as_dot", "as_mermaid", "as_openlineage"]

_MERMAID = {"source": "([{}])", "topic": "[{}]", "flow": "{{{{{}}}}}", "view": "[({})]"}
_DOT = {"source": "oval", "topic": "box", "flow": "hexagon", "view": "cylinder"}
_SPEC = "https://openlineage.io/spec/2-0-2/OpenLineage.json#/$defs/JobEvent"
_PRODUCER = "urn:headrace"


def as_mermaid(graph: Graph) -> str:
    ids = {one.id: f"n{number}" for number, one in enumerate(graph.nodes)}
    lines = ["flowchart LR"]
    for one in graph.nodes:
        text = '"{}"'.format(one.name.replace('"', "#quot;"))
        lines.append(f"    {ids[one.id]}{_MERMAID[one.kind].format(text)}")
    lines += [f"    {ids[begin]} --> {ids[end]}" for begin, end in graph.edges]
    return "\n".join(lines) + "\n"


def as_dot(graph: Graph) -> str:
    lines = [f"digraph {_quoted(graph.app)} {{", "    rankdir=LR;"]
    for one in graph.nodes:
        lines.append(f"    {_quoted(one.id)} [label={_quoted(one.name)}, shape={_DOT[one.kind]}];")
    lines += [f"    {_quoted(begin)} -> {_quoted(end)};" for begin, end in graph.edges]
    return "\n".join([*lines, "}"]) + "\n"


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def as_openlineage(app: App, bootstrap: str, now_ms: int) -> Iterator[dict[str, Any]]:
    """``bootstrap`` is where the log is; the first of several addresses names it."""
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
        kept = {"namespace": f"headrace://{app.name}/{type(view.store).__name__.lower()}", "name": view.name}
        yield event(f"view.{view.name}", [view.topic.name], kept)
