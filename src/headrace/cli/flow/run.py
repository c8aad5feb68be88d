"""``headrace flow run``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from headrace.cli.session import Session
from headrace.cli.verb import verb
from headrace.cli.view.options import AppName

__all__ = ["run"]


@verb(
    "run",
    examples="""
    headrace flow run examples.shop:app -b kafka:9092
    headrace flow run examples.shop:app sum_revenue -b kafka:9092 --master spark://cluster:7077
    """,
)
def run(
    session: Session,
    app: AppName,
    flows: Annotated[
        list[str] | None, typer.Argument(metavar="[FLOW]...", help="Which; otherwise all of them.")
    ] = None,
    data: Annotated[
        Path | None, typer.Option("--data", "-d", metavar="DIR", help="Where Spark's state is kept.")
    ] = None,
    master: Annotated[
        str | None, typer.Option("--master", metavar="URL", help="Spark's master; otherwise this machine.")
    ] = None,
    seconds: Annotated[
        float | None,
        typer.Option("--for", metavar="SECONDS", help="Stop by itself; otherwise with Ctrl-C.", min=1),
    ] = None,
) -> int:
    """Run an app's flows alone, against a log that runs already.

    One driver at a time runs a flow: starting another one takes the flow over, and the first one is told.
    """
    from headrace.cli.run.show import Asked, run_app

    asked = Asked(app, data=data, master=master, seconds=seconds, only=tuple(flows or ()), with_views=False)
    return run_app(session, asked)
