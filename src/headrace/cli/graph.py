"""``headrace graph``: an app as a graph, for a page, a picture or a catalogue."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from headrace.cli.session import Session
from headrace.cli.verb import Command, build, verb
from headrace.cli.view.options import AppName
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
        typer.Option("--format", "-f", help="How to tell it; openlineage has a job event in each line."),
    ] = Format.table,
) -> None:
    """Show an app as a graph: table, Mermaid, DOT or OpenLineage.

    Its topics, flows and views, and which way data moves between them. Nothing has to run: it is what the app
    declares. How it goes is on the page of headrace run.
    """
    from headrace.cli.view.options import checked_app
    from headrace.ops.graph import graph_of
    from headrace.ops.graph_formats import as_dot, as_mermaid, as_openlineage

    loaded = checked_app(app)
    made = graph_of(loaded)
    if form == Format.openlineage:
        for event in as_openlineage(loaded, session.bootstrap, SystemClock().now_ms()):
            session.out.json_line(event)
    elif form != Format.table:
        session.out.write((as_mermaid if form == Format.mermaid else as_dot)(made).encode())
    elif session.out.as_json:
        session.out.json_line(made.told())
    else:
        named = {one.id: one for one in made.nodes}
        session.out.table(
            [
                {
                    "from": named[begin].name,
                    "kind": named[begin].kind,
                    "to": named[end].name,
                    "to_kind": named[end].kind,
                    "about": named[end].about,
                }
                for begin, end in made.edges
            ]
        )


def command() -> Command:
    return build(graph)
