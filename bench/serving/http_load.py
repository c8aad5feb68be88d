"""A client of HTTP that costs little: connections that are kept, each asking again as soon as it has its answer.

    python -m bench.serving.http_load TASK

It sends and reads bytes, and looks at no more of an answer than its status and its length. A stall of the server holds
up every connection once: fewer questions are then asked, and each of those that waited counts.
"""

from __future__ import annotations

import json
import random
import selectors
import socket
import sys
import time
from dataclasses import dataclass

from bench.serving.spans import at_share

__all__ = ["Caller"]

_LENGTH = b"content-length: "


@dataclass(frozen=True, slots=True)
class _Task:
    port: int
    path: str
    """Of a row, without its key."""
    key: str
    """The text of a key, with a place for its number."""
    rows: int
    connections: int
    warm_s: float
    seconds: float


class Caller:
    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._said = b""
        self.began = 0.0

    def ask(self, request: bytes) -> None:
        self.began = time.perf_counter()
        self.socket.sendall(request)

    def take(self) -> bool:
        """Whether the answer is whole."""
        got = self.socket.recv(65_536)
        if not got:
            raise SystemExit("the server has ended the connection")
        said = self._said = self._said + got
        head = said.find(b"\r\n\r\n")
        if head < 0:
            return False
        if not said.startswith(b"HTTP/1.1 200"):
            raise SystemExit(f"the server says: {said[:2_000].decode(errors='replace')}")
        at = said.lower().index(_LENGTH) + len(_LENGTH)
        if len(said) < head + 4 + int(said[at : said.index(b"\r", at)]):
            return False
        self._said = b""
        return True


def main() -> None:
    task = _Task(**json.loads(sys.argv[1]))
    rng = random.Random(1)
    rest = f" HTTP/1.1\r\nHost: 127.0.0.1:{task.port}\r\n\r\n"

    def request() -> bytes:
        return f"GET {task.path}{task.key.format(rng.randrange(task.rows))}{rest}".encode()

    selector = selectors.DefaultSelector()
    began = time.perf_counter()
    for _ in range(task.connections):
        caller = Caller(task.port)
        selector.register(caller.socket, selectors.EVENT_READ, caller)
        caller.ask(request())
    counts_from, until = began + task.warm_s, began + task.warm_s + task.seconds
    spans: list[float] = []
    now = began
    while now < until:
        for key, _ in selector.select(10):
            caller = key.data
            if caller.take():
                now = time.perf_counter()
                if now >= counts_from:
                    spans.append(now - caller.began)
                caller.ask(request())
    spans.sort()
    told = {"rate": len(spans) / (now - counts_from)}
    print(json.dumps({**told, "p50_ms": at_share(spans, 0.5) * 1e3, "p99_ms": at_share(spans, 0.99) * 1e3}))


if __name__ == "__main__":
    main()
