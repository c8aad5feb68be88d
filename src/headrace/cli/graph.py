"""``headrace graph``: print an app's graph as a table, as a picture or for a lineage catalogue."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from headrace.cli.options import AppName
from headrace.cli.session import Session
from headrace.cli.verb import Command, build, verb
from headrace.clock import SystemClock

__all__ = ["command", "graph"]


class Format(StrEnum):
    table = "table"
    mermaid = "mermaid"
    dot = "dot"
    openlineage = "openlineage"


@verb(
    "graph",
    examples="""
    headrace graph examples.shop:app
    headrace graph examples.shop:app --format mermaid
    headrace graph examples.shop:app --format dot | dot -Tsvg > shop.svg
    headrace graph examples.shop:app --format openlineage -b kafka:9092
    """,
)
def graph(
    session: Session,
    app: AppName,
    form: Annotated[
        Format,
        typer.Option("--format", "-f", help="Output format; openlineage prints one job event per line."),
    ] = Format.table,
) -> None:
    """Show an app as a graph: table, Mermaid, DOT or OpenLineage.

    The graph has the app's topics, flows and views, and the direction of data between them. It shows the declarations,
    so the app need not run. The web UI of headrace run shows the graph of a running app.
    """
    from headrace.cli.app_loader import load_checked_app
    from headrace.ops.graph import as_dot, as_mermaid, as_openlineage, graph_of

    loaded = load_checked_app(app)
    app_graph = graph_of(loaded)
    if form == Format.openlineage:
        for event in as_openlineage(loaded, session.bootstrap, SystemClock().now_ms()):
            session.out.json_line(event)
    elif form != Format.table:
        session.out.write((as_mermaid if form == Format.mermaid else as_dot)(app_graph).encode())
    elif session.out.as_json:
        session.out.json_line(app_graph.to_json())
    else:
        nodes = {node.id: node for node in app_graph.nodes}
        session.out.table(
            [
                {
                    "from": nodes[begin].name,
                    "kind": nodes[begin].kind,
                    "to": nodes[end].name,
                    "to_kind": nodes[end].kind,
                    "about": nodes[end].about,
                }
                for begin, end in app_graph.edges
            ]
        )


def command() -> Command:
    return build(graph)
