"""``headrace flow rebuild``."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated

import typer

from headrace.cli.errors import NotConfirmed
from headrace.cli.session import Session
from headrace.cli.verb import verb
from headrace.cli.view.options import AppName

__all__ = ["rebuild"]


@verb(
    "rebuild",
    examples="""
    headrace flow rebuild examples.shop:app sum_revenue
    headrace flow rebuild examples.shop:app enrich_orders --yes
    """,
)
def rebuild(
    session: Session,
    app: AppName,
    flows: Annotated[list[str], typer.Argument(metavar="FLOW...", help="Which flows.")],
    data: Annotated[
        Path | None, typer.Option("--data", "-d", metavar="DIR", help="Where Spark's state is kept.")
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Begin a new generation of flows, and of all that read what they write.

    Everything is derived again from the log, into topics with the number of the generation behind their name. Views
    serve what they have until the new one has caught up. A driver that runs one of the flows is stopped by it: start
    it again afterwards.
    """
    from headrace.cli.settings import cluster_of, settings_for
    from headrace.cli.view.options import checked_app
    from headrace.runtime.rebuilding import rebuild as begin
    from headrace.runtime.rebuilding import to_rebuild

    loaded = checked_app(app)
    chosen = [flow.name for flow in to_rebuild(loaded, flows)]
    session.out.note(f"a new generation of {', '.join(chosen)}")
    if not yes and not typer.confirm("derive them again?", err=True):
        raise NotConfirmed("nothing was done", hint="--yes does it without asking")
    settings = settings_for(session)
    settings = dataclasses.replace(settings, data=data or settings.data)
    cluster = cluster_of(session)
    begun = begin(loaded, settings, cluster, flows, tell=session.out.note)
    session.out.table(
        [{"flow": one.flow, "generation": one.generation, "writes": one.output} for one in begun]
    )
