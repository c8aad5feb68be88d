"""``headrace serve``: an app's views and topics over HTTP."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from headrace.cli.listening import PgListen
from headrace.cli.session import Session
from headrace.cli.verb import Command, build, verb
from headrace.cli.view.options import AppName, Data
from headrace.settings.page_place import NOT_SERVED, USUAL_LISTEN

__all__ = ["command", "serve"]

_POLL_S = 0.1


@verb(
    "serve",
    examples="""
    headrace serve examples.shop:app
    headrace serve examples.shop:app --listen 127.0.0.1:0 -b kafka:9092
    headrace token create dashboard --scope 'read:view:*'
    headrace serve examples.shop:app --listen 0.0.0.0:8180
    headrace serve examples.shop:app --pg-listen 127.0.0.1:5433
    """,
)
def serve(
    session: Session,
    app: AppName,
    listen: Annotated[
        str | None,
        typer.Option(
            "--listen", "-l", metavar="HOST:PORT", help=f"Where to answer; otherwise {USUAL_LISTEN}."
        ),
    ] = None,
    pg_listen: PgListen = None,
    data: Data = None,
) -> int:
    """Answer over HTTP: an app's views and topics.

    Views by key, range, filter and words; topics to read and to write. It follows nothing by itself: headrace run, or
    headrace view follow, keeps the views. Each answer says the position that it reflects. Other machines are let in
    with tokens only. /docs tells all routes.
    """
    from headrace.cli.reach import check_reachable
    from headrace.cli.settings import cluster_of, settings_for
    from headrace.cli.stopping import Stopping
    from headrace.cli.view.options import checked_app
    from headrace.serve.access_log import LogFile
    from headrace.serve.server import Server

    loaded = checked_app(app)
    settings = settings_for(session, data=data, serve=listen, pg_listen=pg_listen)
    check_reachable(session.bootstrap)
    kept = settings.serve.access_log
    file = LogFile(kept, settings.serve.access_log_bytes_max) if kept is not None else None
    server = Server(
        loaded,
        cluster_of(session),
        settings.data,
        settings.serve,
        USUAL_LISTEN if settings.serve.listen in (None, NOT_SERVED) else settings.serve.listen,
        warn=session.out.warn,
        log=file.write if file else None if session.out.quiet else session.out.note,
    )
    with Stopping() as stopping:
        server.start()
        session.out.text(f"serving {loaded.name} at {server.address}")
        if server.pg_address:
            session.out.text(f"answering in PostgreSQL's protocol at {server.pg_address}")
        session.out.flush()
        try:
            while not stopping.asked and server.is_running:
                time.sleep(_POLL_S)
            if server.failure is not None:
                raise server.failure
        finally:
            server.stop()
            if file is not None:
                file.close()
    return 0


def command() -> Command:
    return build(serve)
