"""Starts the server of a run: the web UI, the HTTP API and the PostgreSQL protocol."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from headrace.model.errors import MissingExtra
from headrace.settings import DEFAULT_SERVE_LISTEN, FREE_SERVE_LISTEN, SERVE_OFF

if TYPE_CHECKING:
    from headrace.runtime.run import Run
    from headrace.serve.http.request_log import LogFile
    from headrace.serve.http.server import Server

__all__ = ["start_server"]


def start_server(run: Run, *, page: bool, warn: Callable[[str], None]) -> None:
    """Start the server of the run. ``page`` starts it even if ``serve.listen`` is not set."""
    listen = run.settings.serve.listen
    if listen == SERVE_OFF or (listen is None and not page):
        return
    from headrace.serve.http.request_log import LogFile
    from headrace.serve.http.server import AddressTaken

    settings = run.settings
    path = settings.serve.access_log or settings.data / "access.log"
    run.access_log = log = LogFile(path, settings.serve.access_log_bytes_max)
    if listen is not None:
        server = _server(run, listen, log, warn)
    else:
        try:
            server = _server(run, DEFAULT_SERVE_LISTEN, log, warn)
        except AddressTaken:
            server = _server(run, FREE_SERVE_LISTEN, log, warn)
        except MissingExtra as error:
            run.note(f"the web UI is not available: {error}")
            return
    run.server = server
    server.start()
    run.note(f"the web UI is at {server.address}")
    if server.pg_address:
        run.note(f"PostgreSQL protocol at {server.pg_address}")


def _server(run: Run, listen: str, log: LogFile, warn: Callable[[str], None]) -> Server:
    from headrace.runtime.probe import RunProbe
    from headrace.serve.http.server import Server

    return Server(
        run.app,
        run.cluster,
        run.settings.data,
        run.settings.serve,
        listen,
        warn=warn,
        log=log.write,
        probe=RunProbe(run),
        future_ms=run.settings.flow.future_ms,
    )
