"""``headrace run``: a whole app on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from headrace.cli.listening import PgListen
from headrace.cli.session import Session
from headrace.cli.verb import Command, build, verb
from headrace.settings.page_place import USUAL_LISTEN

__all__ = ["command", "run"]


@verb(
    "run",
    examples="""
    headrace run shop:app
    headrace run shop:app --data ./shop-data --for 60 --verify
    headrace run shop:app -b kafka:9092 --master spark://cluster:7077
    headrace run shop:app --verify-every 3600
    headrace run shop:app --metrics 127.0.0.1:9309
    headrace run shop:app --serve 127.0.0.1:8180 --pg-listen 127.0.0.1:5433
    headrace run examples.shop:app --feed examples.shop.traffic:feed
    """,
)
def run(
    session: Session,
    app: Annotated[str, typer.Argument(metavar="MODULE:APP", help="The app, as Python would import it.")],
    data: Annotated[
        Path | None,
        typer.Option("--data", "-d", metavar="DIR", help="Where the log, state and views are kept."),
    ] = None,
    listen: Annotated[
        str | None,
        typer.Option("--listen", "-l", metavar="HOST:PORT", help="Where the embedded broker listens."),
    ] = None,
    master: Annotated[
        str | None, typer.Option("--master", metavar="URL", help="Spark's master; otherwise this machine.")
    ] = None,
    seconds: Annotated[
        float | None,
        typer.Option("--for", metavar="SECONDS", help="Stop by itself; otherwise with Ctrl-C.", min=1),
    ] = None,
    verify: Annotated[bool, typer.Option("--verify", help="Prove every view at the end.")] = False,
    verify_every: Annotated[
        int | None,
        typer.Option(
            "--verify-every", metavar="SECONDS", min=1, help="Prove every view again and again, beside it."
        ),
    ] = None,
    metrics: Annotated[
        str | None,
        typer.Option("--metrics", metavar="HOST:PORT", help="Answer Prometheus there."),
    ] = None,
    serve: Annotated[
        str | None,
        typer.Option(
            "--serve",
            metavar="HOST:PORT",
            help=f"Where the page is, and views are read; otherwise {USUAL_LISTEN} or a free port. off: nowhere.",
        ),
    ] = None,
    pg_listen: PgListen = None,
    feed: Annotated[
        str | None,
        typer.Option(
            "--feed",
            metavar="MODULE:FUNCTION",
            help="Run feed(cluster, stop) beside it, to write events.",
        ),
    ] = None,
    watch: Annotated[
        list[str] | None,
        typer.Option(
            "--watch", metavar="SQL", help="Show the rows of this query over the views; may be repeated."
        ),
    ] = None,
    backup: Annotated[
        Path | None,
        typer.Option(
            "--backup", metavar="FOLDER", help="Where the embedded broker keeps a continuous backup."
        ),
    ] = None,
    rebuild_changed: Annotated[
        bool,
        typer.Option("--rebuild-changed", help="Start a new generation of flows whose function was changed."),
    ] = False,
) -> int:
    """Run a whole app on this machine: log, flows and views.

    Without -b an embedded broker is started. It keeps running until Ctrl-C; starting it again goes on exactly where it
    stopped. A flow or view that fails is told of, and the others go on; the exit code is then 1, as it is when a proof
    has found a view that is not as derived. Lags are watched: what is about to be lost is told before it is.
    """
    from headrace.cli.run.show import Asked, run_app

    asked = Asked(
        app,
        data,
        listen,
        master,
        seconds,
        verify,
        feed,
        tuple(watch or ()),
        rebuild_changed,
        verify_every=verify_every,
        metrics=metrics,
        backup=backup,
        serve=serve,
        pg_listen=pg_listen,
    )
    return run_app(session, asked)


def command() -> Command:
    return build(run)
