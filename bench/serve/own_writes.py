"""Clients that read their own writes: they write a record over HTTP, and read its row with the token of the response.

The wait is the time from the response to the write to the response to the read. A whole app runs as users start it:
broker, flow, view and server. A quick run measures only the view of a topic that no flow writes.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bench.serve.app import TICKS, only_view, ticks_app
from bench.serve.context import ServeContext, run_program
from headrace.client.declared_topics import ensure_declared
from headrace.follow.follower import Follower
from headrace.stores.registry import open_writer

__all__ = ["measure"]

_LIMITS = {
    "large_orders": ("behind a flow in micro-batches", 1_000.0),
    "large_orders_now": ("behind a flow in real time", 150.0),
}
_WITHOUT_FLOW, _WITHOUT_FLOW_MS = "of a view without a flow", 1_000.0


def measure(context: ServeContext) -> None:
    for _ in range(context.plan.rounds):
        _note(context, _WITHOUT_FLOW, _WITHOUT_FLOW_MS, _without_flow(context))
        if context.plan.is_quick:
            continue
        for query, (title, limit_ms) in _LIMITS.items():
            _note(context, title, limit_ms, _with_flow(context, query))


def _note(context: ServeContext, title: str, limit_ms: float, figures: Mapping[str, float]) -> None:
    note, peer = context.figures.add_comparison, f"a limit of {limit_ms:g} ms"
    name = f"read-your-writes wait {title}"
    print(f"  {name}: {figures['count']:g} writes", flush=True)
    for part in ("p50", "p99"):
        note(f"{name}, {part}", peer, figures[f"{part}_ms"], limit_ms, "ms")
    note(f"write and read together {title}, p99", peer, figures["whole_p99_ms"], limit_ms, "ms", None)


def _load(context: ServeContext, port: int, topic: str, view: str, kind: str) -> dict[str, float]:
    plan = context.plan
    task: dict[str, Any] = {"topic": topic, "view": view, "kind": kind, "writers": plan.writers}
    figures: dict[str, float] = run_program(
        "own_writes_load", port=port, warm_s=plan.own_s / 4, seconds=plan.own_s, **task
    )
    return figures


def _without_flow(context: ServeContext) -> dict[str, float]:
    app, data = ticks_app(), context.folder("own")
    view = only_view(app)
    ensure_declared(context.cluster, view.topic, TICKS, 1)
    stop = threading.Event()
    follower = Follower(view, [], context.cluster, lambda: open_writer(view, app.name, data))
    thread = threading.Thread(target=follower.run, args=(stop,))
    thread.start()
    try:
        with context.serving(TICKS, data) as served:
            return _load(context, served.port, TICKS, TICKS, "ticks")
    finally:
        stop.set()
        thread.join()


def _with_flow(context: ServeContext, query: str) -> dict[str, float]:
    # Imported here, because these modules import Spark.
    from bench.flow.start_up import interrupt, start_process, until
    from bench.serve.own_writes_app import TOPIC, VARIABLE, VIEW
    from faults.servers.headrace_broker import COMMAND

    home = context.folder(f"own-{query}")
    arguments = ["--listen", "127.0.0.1:0", "--serve", "127.0.0.1:0", "--data", str(home / "data")]
    command: list[str | Path] = [COMMAND, "run", "bench.serve.own_writes_app:app", *arguments]
    output = home / "output"
    process = start_process(command, output, {**os.environ, VARIABLE: query})
    try:
        match = until(
            process,
            output,
            lambda: re.search(r"the web UI is at http://127\.0\.0\.1:(\d+)", output.read_text()),
        )
        return _load(context, int(match[1]), TOPIC, VIEW, "orders")
    finally:
        interrupt(process)
