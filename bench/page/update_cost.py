"""Script time at 20 updates per second, when every number changes with each update."""

from __future__ import annotations

import contextlib
import http.server
import json
import threading
import time
import urllib.request
from collections.abc import Iterator
from typing import Any

from playwright.sync_api import Page

from bench.page.app import LARGE, SMALL
from bench.page.context import PageContext, metrics

__all__ = ["UPDATES_PER_S", "QuickStream", "measure", "quick_stream"]

_LIMITS_MS = {SMALL: 100.0, LARGE: 250.0}
_DURATIONS = {"ScriptDuration": ("scripts", 1.0), "TaskDuration": ("scripts, layout and paint", None)}
"""For each of Chromium's metrics: what it counts, and its goal."""
_WARM_MS = 1_000


def measure(context: PageContext) -> None:
    for parts, limit_ms in _LIMITS_MS.items():
        with context.serving(parts) as served:
            for _ in range(context.plan.rounds):
                _round(context, parts, limit_ms, served.port)


def _round(context: PageContext, parts: int, limit_ms: float, port: int) -> None:
    with context.screen(port) as screen, quick_stream(screen.page, screen.address) as stream:
        screen.page.goto(f"{screen.address}/#/graph")
        screen.page.wait_for_selector('[data-test="node"]')
        screen.page.wait_for_timeout(_WARM_MS)
        screen.cdp.send("Performance.enable")
        before, updates = metrics(screen.cdp), stream.updates
        screen.page.wait_for_timeout(context.plan.updates_s * 1_000)
        after, updates = metrics(screen.cdp), stream.updates - updates
    elapsed_s = after["Timestamp"] - before["Timestamp"]
    print(f"  {updates / elapsed_s:.1f} updates per second", flush=True)
    for name, (what, goal) in _DURATIONS.items():
        used_ms = (after[name] - before[name]) / elapsed_s * 1_000
        title = f"{what} per second at {UPDATES_PER_S} updates/s, {parts} parts"
        context.figures.add_comparison(title, f"a limit of {limit_ms:g} ms", used_ms, limit_ms, "ms", goal)


UPDATES_PER_S = 20
_STREAM = "**/v1/app/now/stream*"
_COUNTER_FIELDS = ("per_s", "per_s_in", "per_s_out", "records", "end")


class QuickStream:
    """Updates in which every number differs from the previous update."""

    def __init__(self, address: str) -> None:
        with urllib.request.urlopen(f"{address}/v1/app/now", timeout=30) as response:
            self._first: dict[str, Any] = json.load(response)
        self._began_ms = time.time() * 1_000
        self.updates = 0

    def next(self) -> bytes:
        self.updates += 1
        increment = self.updates % 97
        update = {**self._first, "at_ms": self._began_ms + self.updates * 1_000 // UPDATES_PER_S}
        for part in ("nodes", "edges"):
            update[part] = {
                name: _increased(figures, increment) for name, figures in self._first[part].items()
            }
        return b"data: " + json.dumps(update).encode() + b"\n\n"


def _increased(part: dict[str, Any], increment: int) -> dict[str, Any]:
    return {
        name: (value or 0) + increment if name in _COUNTER_FIELDS else value for name, value in part.items()
    }


@contextlib.contextmanager
def quick_stream(page: Page, address: str) -> Iterator[QuickStream]:
    """Replace the stream of numbers that the page will read. Call this before the page is opened."""
    stream = QuickStream(address)

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.end_headers()
            due = time.monotonic()
            with contextlib.suppress(OSError):
                while True:
                    self.wfile.write(stream.next())
                    # Skip updates that a busy machine missed.
                    due = max(due + 1 / UPDATES_PER_S, time.monotonic())
                    time.sleep(max(0.0, due - time.monotonic()))

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    page.route(
        _STREAM, lambda route: route.continue_(url=f"http://127.0.0.1:{server.server_port}/v1/app/now/stream")
    )
    try:
        yield stream
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
