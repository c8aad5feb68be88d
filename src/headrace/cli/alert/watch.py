"""``headrace alert watch``."""

from __future__ import annotations

import threading
from typing import Annotated

import typer

from headrace.cli.session import Session
from headrace.cli.verb import verb
from headrace.cli.view.options import AppName, Data

__all__ = ["watch"]


@verb(
    "watch",
    examples="""
    headrace alert watch examples.shop:app -b kafka:9092
    headrace alert watch examples.shop:app --every 10
    headrace alert watch examples.shop:app --once            from a schedule of your own
    """,
)
def watch(
    session: Session,
    app: AppName,
    data: Data = None,
    every: Annotated[
        float | None,
        typer.Option("--every", metavar="SECONDS", min=0.1, help="How often to look; else as is set."),
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="Look once, and leave.")] = False,
) -> int:
    """Watch an app whose parts run elsewhere, as headrace run does for its own.

    Only one watches an app: the one that was started last. Views are seen where their stores can be read from here.
    """
    from headrace.cli.app_lag import stored_readers
    from headrace.cli.reach import check_reachable
    from headrace.cli.settings import cluster_of
    from headrace.cli.stopping import Stopping
    from headrace.cli.view.options import checked_app, data_dir
    from headrace.ops.alerts.rules import rules_of
    from headrace.ops.alerts.watch import AlertWatch
    from headrace.runtime.part import Part

    settings = session.loaded.settings.alerts
    loaded = checked_app(app)
    rules = rules_of(loaded, settings)
    check_reachable(session.bootstrap)
    cluster = cluster_of(session)
    readers = stored_readers(cluster, loaded, data_dir(session, data))
    stop = threading.Event()
    watching = AlertWatch(
        cluster,
        loaded.name,
        rules,
        readers,
        every or settings.every_s or 5.0,
        tell=session.out.note,
        warn=session.out.warn,
    )
    if once:
        watching.look_once()
        return 0
    part = Part("alerts", watching.run, stop)
    part.start()
    try:
        with Stopping() as stopping:
            while not stopping.asked and part.is_running:
                part.join(0.1)
    finally:
        stop.set()
        part.join(60.0)
    if part.error is not None:
        raise part.error
    return 0
