"""Rows by their key over HTTP, from each store, beside that store's own driver in one process, and beside the least
that a server in Python does.

The server is one process, which is one worker; a client of its own process asks it over several connections. The
driver reads one row after the other: so its rate is the store's, and what it takes for one is what a caller waits for.
All take turns, with the same rows.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from bench.serving.app import POINTS, STORES, of_stores, view_in
from bench.serving.bare_reads import DRIVERS
from bench.serving.stand import ServeStand, called
from bench.sold import fill, some_rows
from headrace.views.opening import open_store

__all__ = ["measure"]

_KEY = "order-{:09}"
_LEAST = "uvicorn and one function: sqlite3 in the event loop, JSON; no position, no limits, no log"
_LEAST_GOAL = 0.5


def measure(stand: ServeStand) -> None:
    data = stand.folder("points")
    with contextlib.ExitStack() as stack:
        environment = stack.enter_context(_servers())
        app = of_stores()
        for view in app.views:
            with contextlib.closing(open_store(view, app.name, data)) as filled:
                fill(filled, some_rows(_rows(stand, view.name)))
        places = {
            "sqlite": str(data / f"{app.name}.db"),
            "postgres": environment["DATABASE_URL"],
            "redis": environment["REDIS_URL"],
            "search": str(data / f"{app.name}.search"),
            "delta": str(data / f"{app.name}.lake"),
        }
        port = stack.enter_context(stand.serving(POINTS, data)).port
        for store in STORES:
            for number in range(stand.plan.rounds):
                _turns(stand, store, port, places[store], ours_first=bool(number % 2))
        with _least(places["sqlite"]) as least:
            for number in range(stand.plan.rounds):
                both = (("us", port), ("them", least))
                for who, at in both if number % 2 else reversed(both):
                    _note(stand, who, "sqlite", _LEAST, _load(stand, "sqlite", at), _LEAST_GOAL)


def _turns(stand: ServeStand, store: str, port: int, place: str, *, ours_first: bool) -> None:
    driver = f"{DRIVERS[store][1]}; one process, one connection"
    alone = f"row by key from {store}, 1 connection, p99"

    def ours() -> None:
        _note(stand, "us", store, driver, _load(stand, store, port))
        found = _load(stand, store, port, connections=1)
        stand.measured.note("us", alone, driver, found["p99_ms"], "ms", None)

    def theirs() -> None:
        times = _times(stand, store)
        found = called("bare_reads", store=store, place=place, view=view_in(store), **times)
        _note(stand, "them", store, driver, found)
        stand.measured.note("them", alone, driver, found["p99_ms"], "ms", None)

    for turn in (ours, theirs) if ours_first else (theirs, ours):
        turn()


def _rows(stand: ServeStand, view: str) -> int:
    return stand.plan.lake_rows if view == view_in("delta") else stand.plan.rows


def _times(stand: ServeStand, store: str) -> dict[str, Any]:
    plan = stand.plan
    rows = _rows(stand, view_in(store))
    return {"key": _KEY, "rows": rows, "warm_s": plan.warm_s, "seconds": plan.seconds}


def _load(stand: ServeStand, store: str, port: int, connections: int = 0) -> dict[str, float]:
    path = f"/v1/views/{view_in(store)}/rows/"
    connections = connections or stand.plan.connections
    found: dict[str, float] = called(
        "http_load", port=port, path=path, connections=connections, **_times(stand, store)
    )
    return found


def _note(
    stand: ServeStand, who: str, store: str, peer: str, found: Mapping[str, float], goal: float | None = None
) -> None:
    many = f"{stand.plan.connections} connections"
    stand.measured.note(who, f"rows by key from {store}, {many}", peer, found["rate"], "reads/s", goal)
    stand.measured.note(who, f"row by key from {store}, {many}, p99", peer, found["p99_ms"], "ms", goal)


@contextlib.contextmanager
def _servers() -> Iterator[dict[str, str]]:
    """Of the stores that have one, and the variables that name them, which are set as long as this lasts."""
    from tests.support.postgres import shared_server
    from tests.support.redis import fresh_database, shared

    postgres = shared_server()
    database = postgres.database()
    named = {
        "DATABASE_URL": postgres.url(database),
        "REDIS_URL": f"{shared().url}?db={fresh_database()}",
    }
    before = {name: os.environ.get(name) for name in named}
    os.environ.update(named)
    try:
        yield named
    finally:
        for name, text in before.items():
            if text is None:
                del os.environ[name]
            else:
                os.environ[name] = text
        postgres.drop(database)


@contextlib.contextmanager
def _least(file: str) -> Iterator[int]:
    command = [sys.executable, "-m", "bench.serving.bare_http", file, view_in("sqlite")]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        yield int(process.stdout.readline())
    finally:
        process.stdin.close()
        process.wait(30)
        process.stdout.close()
