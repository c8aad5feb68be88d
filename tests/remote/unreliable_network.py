"""A proxy between client and server that cuts connections and drops responses."""

from __future__ import annotations

import contextlib
import socket
import threading
from typing import Literal

__all__ = ["Network"]

Mode = Literal["open", "cut", "deaf"]


class Network:
    """Listens on its own port. In mode ``cut``, no connection works. In mode ``deaf``, requests arrive, but the
    proxy drops the responses, except those to CORS preflights, without which a browser sends no request.
    """

    def __init__(self, port: int) -> None:
        self._server_port = port
        self.mode: Mode = "open"
        self._open_sockets: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self.received = bytearray()
        """The first 4 MB that clients sent."""
        self.dropped_responses = 0
        """Responses that were dropped."""
        self.refused = 0
        """Connections that were refused."""
        threading.Thread(target=self._accept, daemon=True).start()

    def connect_to(self, port: int) -> None:
        """Connect later connections to another server."""
        self._server_port = port

    def set_mode(self, mode: Mode) -> None:
        with self._lock:
            self.mode = mode
            pairs, self._open_sockets = self._open_sockets, set()
        for pair in pairs:
            _close(pair)

    def close(self) -> None:
        self.set_mode("cut")
        _close(self._listener)

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            if self.mode == "cut":
                self.refused += 1
                _close(client)
                continue
            try:
                server = socket.create_connection(("127.0.0.1", self._server_port))
            except OSError:
                _close(client)
                continue
            with self._lock:
                self._open_sockets |= {client, server}
            request_start = bytearray()
            threading.Thread(
                target=self._copy_bytes, args=(client, server, request_start, True), daemon=True
            ).start()
            threading.Thread(
                target=self._copy_bytes, args=(server, client, request_start, False), daemon=True
            ).start()

    def _copy_bytes(
        self, source: socket.socket, target: socket.socket, request_start: bytearray, is_request: bool
    ) -> None:
        """Copy bytes in one direction. ``request_start`` has the first bytes of the last request."""
        with contextlib.suppress(OSError):
            while data := source.recv(65_536):
                if is_request:
                    request_start[:] = data[:8]
                    self.received += data[: max(0, 4_000_000 - len(self.received))]
                elif self.mode == "deaf" and request_start != b"OPTIONS ":
                    self.dropped_responses += 1
                    break
                target.sendall(data)
        _close(source)
        _close(target)


def _close(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
    with contextlib.suppress(OSError):
        connection.close()
