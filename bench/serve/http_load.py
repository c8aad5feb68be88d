"""An HTTP client that costs little. It sends the next request on each kept-alive connection as soon as it has a
response.

    python -m bench.serve.http_load TASK

It sends and reads bytes, and parses only the status and the length of a response. A stall of the server delays one
request per connection: fewer requests are sent, and the delayed requests are counted with their delay.
"""

from __future__ import annotations

import json
import random
import selectors
import socket
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["Caller", "percentile"]

_LENGTH = b"content-length: "


@dataclass(frozen=True, slots=True)
class _Task:
    port: int
    path: str
    """The path of a row, without its key."""
    key: str
    """The text of a key, with a placeholder for its number."""
    rows: int
    connections: int
    warm_s: float
    seconds: float


class Caller:
    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._received = b""
        self.began = 0.0

    def send(self, request: bytes) -> None:
        self.began = time.perf_counter()
        self.socket.sendall(request)

    def receive(self) -> bool:
        """Read once, and return whether the response is complete."""
        data = self.socket.recv(65_536)
        if not data:
            raise SystemExit("the server closed the connection")
        received = self._received = self._received + data
        head = received.find(b"\r\n\r\n")
        if head < 0:
            return False
        if not received.startswith(b"HTTP/1.1 200"):
            raise SystemExit(f"the server responded: {received[:2_000].decode(errors='replace')}")
        length_at = received.lower().index(_LENGTH) + len(_LENGTH)
        if len(received) < head + 4 + int(received[length_at : received.index(b"\r", length_at)]):
            return False
        self._received = b""
        return True


def main() -> None:
    task = _Task(**json.loads(sys.argv[1]))
    rng = random.Random(1)
    request_end = f" HTTP/1.1\r\nHost: 127.0.0.1:{task.port}\r\n\r\n"

    def request() -> bytes:
        return f"GET {task.path}{task.key.format(rng.randrange(task.rows))}{request_end}".encode()

    selector = selectors.DefaultSelector()
    began = time.perf_counter()
    for _ in range(task.connections):
        caller = Caller(task.port)
        selector.register(caller.socket, selectors.EVENT_READ, caller)
        caller.send(request())
    counts_from, until = began + task.warm_s, began + task.warm_s + task.seconds
    spans: list[float] = []
    now = began
    while now < until:
        for key, _ in selector.select(10):
            caller = key.data
            if caller.receive():
                now = time.perf_counter()
                if now >= counts_from:
                    spans.append(now - caller.began)
                caller.send(request())
    spans.sort()
    figures = {"rate": len(spans) / (now - counts_from)}
    print(
        json.dumps(
            {**figures, "p50_ms": percentile(spans, 0.5) * 1e3, "p99_ms": percentile(spans, 0.99) * 1e3}
        )
    )


def percentile(spans: Sequence[float], share: float) -> float:
    """Return the percentile of the sorted durations: the median for a ``share`` of 0.5."""
    if not spans:
        raise SystemExit("no request was measured: increase the duration")
    return spans[min(len(spans) - 1, int(len(spans) * share))]


if __name__ == "__main__":
    main()
