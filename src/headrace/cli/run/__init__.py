"""``headrace run``: run a whole app on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from headrace.cli.options import AlertExec, AppName, Data, Master, PgListen, StopAfter
from headrace.cli.session import Session
from headrace.cli.verb import Command, build, verb
from headrace.settings import DEFAULT_SERVE_LISTEN

__all__ = ["command", "run"]


@verb(
    "run",
    examples="""
    headrace run shop:app
    headrace run shop:app --data ./shop-data --for 60 --verify
    headrace run shop:app -b kafka:9092 --master spark://cluster:7077
    headrace run shop:app --verify-every 3600
    headrace run shop:app --metrics 127.0.0.1:9309
    headrace run shop:app --alert-exec /usr/local/bin/page-me
    headrace run shop:app --serve 127.0.0.1:8180 --pg-listen 127.0.0.1:5433
    headrace run examples.shop:app --feed examples.shop.traffic:feed
    """,
)
def run(
    session: Session,
    app: AppName,
    data: Data = None,
    listen: Annotated[
        str | None,
        typer.Option(
            "--listen",
            "-l",
            metavar="HOST:PORT",
            help="Address of the embedded broker (default: the setting log.listen).",
        ),
    ] = None,
    master: Master = None,
    seconds: StopAfter = None,
    verify: Annotated[bool, typer.Option("--verify", help="Verify every view at the end.")] = False,
    verify_every: Annotated[
        int | None,
        typer.Option(
            "--verify-every",
            metavar="SECONDS",
            min=1,
            help="Verify every view at this interval while the app runs (default: never).",
        ),
    ] = None,
    metrics: Annotated[
        str | None,
        typer.Option(
            "--metrics",
            metavar="HOST:PORT",
            help="Serve /metrics for Prometheus at this address (default: off).",
        ),
    ] = None,
    serve: Annotated[
        str | None,
        typer.Option(
            "--serve",
            metavar="HOST:PORT",
            help=f"Address of the web UI and HTTP API (default: {DEFAULT_SERVE_LISTEN} or a free port); off: none.",
        ),
    ] = None,
    pg_listen: PgListen = None,
    feed: Annotated[
        str | None,
        typer.Option(
            "--feed",
            metavar="MODULE:FUNCTION",
            help="Call this function in a thread, as FUNCTION(cluster, stop), to write events.",
        ),
    ] = None,
    watch: Annotated[
        list[str] | None,
        typer.Option(
            "--watch",
            metavar="SQL",
            help="Show the rows of this SELECT over the views, in DuckDB's SQL; may be repeated.",
        ),
    ] = None,
    backup: Annotated[
        Path | None,
        typer.Option(
            "--backup",
            metavar="FOLDER",
            help="Folder for a continuous backup by the embedded broker (default: no backup).",
        ),
    ] = None,
    alert_exec: AlertExec = None,
    rebuild_changed: Annotated[
        bool,
        typer.Option(
            "--rebuild-changed",
            help="Start a new generation of flows whose function changed. The old one serves, but rests.",
        ),
    ] = False,
) -> int:
    """Run a whole app on this machine: log, flows and views.

    Without -b it starts an embedded broker. The app runs until Ctrl-C; the next start continues exactly where it
    stopped. If a flow or view fails, the others continue, and the exit code is 1. The exit code is also 1 if a
    verification finds a difference between a view and the log. The command watches lag, and warns before retention
    deletes unread records.
    """
    from headrace.cli.run.app_run import RunOptions, run_app

    options = RunOptions(
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
        alert_exec=alert_exec,
    )
    return run_app(session, options)


def command() -> Command:
    return build(run)
