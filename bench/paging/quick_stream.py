"""What a page follows, told 20 times per second, with every number another one each time.

The server itself measures once a second. The page is given this instead of its stream, and does not see a difference:
only the address that is asked is another.
"""

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

__all__ = ["UPDATES_PER_S", "QuickStream", "quick_stream"]

UPDATES_PER_S = 20
_STREAM = "**/v1/app/now/stream*"
_CHANGING = ("per_s", "per_s_in", "per_s_out", "records", "end")


class QuickStream:
    def __init__(self, address: str) -> None:
        with urllib.request.urlopen(f"{address}/v1/app/now", timeout=30) as answer:
            self._first: dict[str, Any] = json.load(answer)
        self._began_ms = time.time() * 1_000
        self.updates = 0

    def next(self) -> bytes:
        self.updates += 1
        more = self.updates % 97
        told = {**self._first, "at_ms": self._began_ms + self.updates * 1_000 // UPDATES_PER_S}
        for part in ("nodes", "edges"):
            told[part] = {name: _changed(one, more) for name, one in self._first[part].items()}
        return b"data: " + json.dumps(told).encode() + b"\n\n"


def _changed(one: dict[str, Any], more: int) -> dict[str, Any]:
    return {name: (value or 0) + more if name in _CHANGING else value for name, value in one.items()}


@contextlib.contextmanager
def quick_stream(page: Page, address: str) -> Iterator[QuickStream]:
    """For a page that is not open yet."""
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
                    # What was missed on a busy machine is not made up for.
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
