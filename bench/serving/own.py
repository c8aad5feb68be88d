"""Reading what one has written: a record is written over HTTP, and its row read with the token of the answer.

The wait is from the answer to the write to the answer to the read. A whole app runs as a process, as its users start
it: broker, flow, view and server. In a quick run only the view of a topic that no flow writes is measured.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Mapping
from typing import Any

from bench.serving.app import TICKS, of_ticks, view_of
from bench.serving.stand import ServeStand, called
from headrace.client.declaring import ensure_declared
from headrace.views.follower import Follower
from headrace.views.opening import open_store

__all__ = ["measure"]

_LIMITS = {
    "kept": ("behind a flow in micro-batches", 1_000.0),
    "kept_now": ("behind a flow in real time", 150.0),
}
_PLAIN, _PLAIN_MS = "of a view without a flow", 1_000.0


def measure(stand: ServeStand) -> None:
    for _ in range(stand.plan.rounds):
        _note(stand, _PLAIN, _PLAIN_MS, _plain(stand))
        if stand.plan.is_quick:
            continue
        for query, (title, limit_ms) in _LIMITS.items():
            _note(stand, title, limit_ms, _with_flow(stand, query))


def _note(stand: ServeStand, title: str, limit_ms: float, found: Mapping[str, float]) -> None:
    note, peer = stand.measured.both, f"a limit of {limit_ms:g} ms"
    name = f"read-your-writes wait {title}"
    print(f"  {name}: {found['count']:g} writes", flush=True)
    for part in ("p50", "p99"):
        note(f"{name}, {part}", peer, found[f"{part}_ms"], limit_ms, "ms")
    note(f"write and read together {title}, p99", peer, found["whole_p99_ms"], limit_ms, "ms", None)


def _load(stand: ServeStand, port: int, topic: str, view: str, what: str) -> dict[str, float]:
    plan = stand.plan
    task: dict[str, Any] = {"topic": topic, "view": view, "what": what, "writers": plan.writers}
    found: dict[str, float] = called("own_load", port=port, warm_s=plan.own_s / 4, seconds=plan.own_s, **task)
    return found


def _plain(stand: ServeStand) -> dict[str, float]:
    app, data = of_ticks(), stand.folder("own")
    view = view_of(app)
    ensure_declared(stand.cluster, view.topic, TICKS, 1)
    stop = threading.Event()
    follower = Follower(view, [], stand.cluster, lambda: open_store(view, app.name, data))
    thread = threading.Thread(target=follower.run, args=(stop,))
    thread.start()
    try:
        with stand.serving(TICKS, data) as served:
            return _load(stand, served.port, TICKS, TICKS, "ticks")
    finally:
        stop.set()
        thread.join()


def _with_flow(stand: ServeStand, query: str) -> dict[str, float]:
    # Spark is imported by these.
    from bench.serving.own_app import TOPIC, VARIABLE, VIEW
    from bench.start_up import end, spawned, until
    from tests.support.embedded import COMMAND

    home = stand.folder(f"own-{query}")
    words = ["--listen", "127.0.0.1:0", "--serve", "127.0.0.1:0", "--data", str(home / "data")]
    command = [COMMAND, "run", "bench.serving.own_app:app", *words]
    said = home / "said"
    process = spawned(command, said, {**os.environ, VARIABLE: query})
    try:
        found = until(
            process, said, lambda: re.search(r"serving at http://127\.0\.0\.1:(\d+)", said.read_text())
        )
        return _load(stand, int(found[1]), TOPIC, VIEW, "orders")
    finally:
        end(process)
