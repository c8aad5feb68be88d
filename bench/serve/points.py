"""Reads of one row by key over HTTP from each store, compared with reads through the store's own driver in one process,
and with a minimal Python HTTP server.

The server is one process, and a client process sends requests over several connections. The driver process reads one
row at a time, so its rate is what the store delivers to one client, and its latency is that of one read. All take
turns, and read the same rows.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from bench.flow.sample_rows import fill, sample_rows
from bench.serve.app import POINTS, STORES, points_app, view_name
from bench.serve.bare_reads import DRIVERS
from bench.serve.context import ServeContext, run_program
from headrace.stores.registry import open_writer

__all__ = ["measure"]

_KEY = "order-{:09}"
_BARE_SERVER = "uvicorn and one function: sqlite3 in the event loop, JSON; no position, no limits, no log"
_BARE_SERVER_GOAL = 0.5


def measure(context: ServeContext) -> None:
    data = context.folder("points")
    with contextlib.ExitStack() as stack:
        environment = stack.enter_context(_servers())
        app = points_app()
        for view in app.views:
            with contextlib.closing(open_writer(view, app.name, data)) as store_writer:
                fill(store_writer, sample_rows(_rows(context, view.name)))
        addresses = {
            "sqlite": str(data / f"{app.name}.db"),
            "postgres": environment["DATABASE_URL"],
            "redis": environment["REDIS_URL"],
            "search": str(data / f"{app.name}.search"),
            "delta": str(data / f"{app.name}.lake"),
        }
        port = stack.enter_context(context.serving(POINTS, data)).port
        for store in STORES:
            for number in range(context.plan.rounds):
                _take_turns(context, store, port, addresses[store], ours_first=bool(number % 2))
        with _bare_server(addresses["sqlite"]) as bare_port:
            for number in range(context.plan.rounds):
                both = (("us", port), ("them", bare_port))
                for who, at in both if number % 2 else reversed(both):
                    _note(
                        context, who, "sqlite", _BARE_SERVER, _load(context, "sqlite", at), _BARE_SERVER_GOAL
                    )


def _take_turns(context: ServeContext, store: str, port: int, address: str, *, ours_first: bool) -> None:
    driver = f"{DRIVERS[store][1]}; one process, one connection"
    figure_of_one_connection = f"row by key from {store}, 1 connection, p99"

    def ours() -> None:
        _note(context, "us", store, driver, _load(context, store, port))
        figures = _load(context, store, port, connections=1)
        context.figures.note("us", figure_of_one_connection, driver, figures["p99_ms"], "ms", None)

    def theirs() -> None:
        options = _read_options(context, store)
        figures = run_program("bare_reads", store=store, address=address, view=view_name(store), **options)
        _note(context, "them", store, driver, figures)
        context.figures.note("them", figure_of_one_connection, driver, figures["p99_ms"], "ms", None)

    for turn in (ours, theirs) if ours_first else (theirs, ours):
        turn()


def _rows(context: ServeContext, view: str) -> int:
    return context.plan.lake_rows if view == view_name("delta") else context.plan.rows


def _read_options(context: ServeContext, store: str) -> dict[str, Any]:
    plan = context.plan
    rows = _rows(context, view_name(store))
    return {"key": _KEY, "rows": rows, "warm_s": plan.warm_s, "seconds": plan.seconds}


def _load(context: ServeContext, store: str, port: int, connections: int = 0) -> dict[str, float]:
    path = f"/v1/views/{view_name(store)}/rows/"
    connections = connections or context.plan.connections
    figures: dict[str, float] = run_program(
        "http_load", port=port, path=path, connections=connections, **_read_options(context, store)
    )
    return figures


def _note(
    context: ServeContext,
    who: str,
    store: str,
    peer: str,
    figures: Mapping[str, float],
    goal: float | None = None,
) -> None:
    many = f"{context.plan.connections} connections"
    context.figures.note(who, f"rows by key from {store}, {many}", peer, figures["rate"], "reads/s", goal)
    context.figures.note(who, f"row by key from {store}, {many}, p99", peer, figures["p99_ms"], "ms", goal)


@contextlib.contextmanager
def _servers() -> Iterator[dict[str, str]]:
    """Start PostgreSQL and Redis, and set the environment variables with their addresses while the block runs."""
    from faults.servers.postgres import shared_server
    from faults.servers.redis import fresh_database, shared

    postgres = shared_server()
    database = postgres.database()
    addresses_by_variable = {
        "DATABASE_URL": postgres.url(database),
        "REDIS_URL": f"{shared().url}?db={fresh_database()}",
    }
    previous = {name: os.environ.get(name) for name in addresses_by_variable}
    os.environ.update(addresses_by_variable)
    try:
        yield addresses_by_variable
    finally:
        for name, text in previous.items():
            if text is None:
                del os.environ[name]
            else:
                os.environ[name] = text
        postgres.drop(database)


@contextlib.contextmanager
def _bare_server(file: str) -> Iterator[int]:
    command = [sys.executable, "-m", "bench.serve.bare_http", file, view_name("sqlite")]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        yield int(process.stdout.readline())
    finally:
        process.stdin.close()
        process.wait(30)
        process.stdout.close()
