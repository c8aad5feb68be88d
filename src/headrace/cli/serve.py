"""``headrace serve``: serve an app's views and topics over HTTP."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from headrace.cli.options import AppName, Data, PgListen
from headrace.cli.session import Session
from headrace.cli.verb import Command, build, verb
from headrace.settings import DEFAULT_SERVE_LISTEN, SERVE_OFF

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
            "--listen",
            "-l",
            metavar="HOST:PORT",
            help=f"Address to listen on (default: {DEFAULT_SERVE_LISTEN}).",
        ),
    ] = None,
    pg_listen: PgListen = None,
    data: Data = None,
) -> int:
    """Serve an app's views and topics over HTTP.

    Clients read views by key, range, filter and full text, and read and write topics. The server does not update views;
    headrace run and headrace view follow do. Each response names the log position that it reflects. Clients on other
    machines need a token. /docs lists all routes.
    """
    from headrace.cli.app_loader import load_checked_app
    from headrace.cli.interrupt import Interrupt
    from headrace.runtime.generation_notices import noting_generations
    from headrace.serve.http.request_log import LogFile
    from headrace.serve.http.server import Server
    from headrace.service_manager import ServiceManager

    manager = ServiceManager.from_environment()
    loaded = load_checked_app(app)
    settings = session.settings(data=data, serve=listen, pg_listen=pg_listen)
    log_path = settings.serve.access_log
    log_file = LogFile(log_path, settings.serve.access_log_bytes_max) if log_path is not None else None
    cluster = session.cluster_of(loaded)
    server = Server(
        loaded,
        cluster,
        settings.data,
        settings.serve,
        DEFAULT_SERVE_LISTEN if settings.serve.listen in (None, SERVE_OFF) else settings.serve.listen,
        warn=session.out.warn,
        log=log_file.write if log_file else None if session.out.quiet else session.out.note,
        future_ms=settings.flow.future_ms,
    )
    with Interrupt() as interrupt, noting_generations(cluster, loaded, session.out.note):
        server.start()
        session.out.text(f"serving {loaded.name} at {server.address}")
        if server.pg_address:
            session.out.text(f"PostgreSQL protocol at {server.pg_address}")
        session.out.flush()
        try:
            manager.ready()
            while not interrupt.requested and server.is_running:
                time.sleep(_POLL_S)
                if manager.watchdog_s is not None and server.responds():
                    manager.alive()
            if server.failure is not None:
                raise server.failure
        finally:
            manager.stopping()
            server.stop()
            if log_file is not None:
                log_file.close()
    return 0


def command() -> Command:
    return build(serve)
