"""A server with scripted responses: exact bytes, sent in pieces, or no response."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterable, Iterator

__all__ = ["ScriptedServer", "answer", "scripted"]

Script = Callable[[int, bytes], Iterable[bytes]]
"""Takes the number of the request, its head and its body; returns the pieces to send before the connection closes."""


def answer(
    status: int = 200,
    body: bytes = b"{}",
    kind: str = "application/json",
    length: int | None = None,
    **headers: str,
) -> bytes:
    """Build a response. ``length`` is its Content-Length; an underscore in a header's name stands for a dash."""
    size = str(len(body) if length is None else length)
    result = {"Content-Type": kind, "Content-Length": size, "Connection": "close", **headers}
    lines = [f"HTTP/1.1 {status} X", *(f"{name.replace('_', '-')}: {text}" for name, text in result.items())]
    return "\r\n".join([*lines, "", ""]).encode() + body


class ScriptedServer:
    def __init__(self, script: Script) -> None:
        self._script = script
        self.requests: list[bytes] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._open: set[socket.socket] = set()
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            self._open.add(client)
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with contextlib.suppress(OSError), client:
            request = _read_request(client)
            if not request:
                return
            self.requests.append(request)
            for piece in self._script(len(self.requests) - 1, request):
                client.sendall(piece)
            client.shutdown(socket.SHUT_WR)
            # Wait until the client has read everything.
            client.recv(1)

    def close(self) -> None:
        for connection in (self._listener, *self._open):
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
            connection.close()


def _read_request(client: socket.socket) -> bytes:
    received = b""
    while b"\r\n\r\n" not in received:
        part = client.recv(65_536)
        if not part:
            return b""
        received += part
    head, _, body = received.partition(b"\r\n\r\n")
    lengths = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
    while lengths and len(body) < int(lengths[0].partition(b":")[2]):
        body += client.recv(65_536)
    return head + b"\r\n\r\n" + body


@contextlib.contextmanager
def scripted(script: Script) -> Iterator[ScriptedServer]:
    server = ScriptedServer(script)
    try:
        yield server
    finally:
        server.close()
