"""A network that can be lost: between a client and a server, with connections cut and answers that never come."""

from __future__ import annotations

import contextlib
import socket
import threading
from typing import Literal

__all__ = ["Network"]

Mode = Literal["open", "cut", "deaf"]


class Network:
    """Listens on a port of its own. ``cut``: nobody gets through. ``deaf``: requests arrive, answers do not; though a
    browser that asks whether it may ask is told so, since it would not ask otherwise.
    """

    def __init__(self, port: int) -> None:
        self._to = port
        self.mode: Mode = "open"
        self._pairs: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self.seen = bytearray()
        """All that clients sent, for a while."""
        self.swallowed = 0
        """Answers that nobody got."""
        self.refused = 0
        """Connections that came to nothing."""
        threading.Thread(target=self._accept, daemon=True).start()

    def lead_to(self, port: int) -> None:
        """Another server, from the next connection on."""
        self._to = port

    def be(self, mode: Mode) -> None:
        with self._lock:
            self.mode = mode
            pairs, self._pairs = self._pairs, set()
        for one in pairs:
            _close(one)

    def close(self) -> None:
        self.be("cut")
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
                server = socket.create_connection(("127.0.0.1", self._to))
            except OSError:
                _close(client)
                continue
            with self._lock:
                self._pairs |= {client, server}
            asked = bytearray()
            threading.Thread(target=self._carry, args=(client, server, asked, True), daemon=True).start()
            threading.Thread(target=self._carry, args=(server, client, asked, False), daemon=True).start()

    def _carry(self, source: socket.socket, target: socket.socket, asked: bytearray, asking: bool) -> None:
        """``asked`` is how the last request began."""
        with contextlib.suppress(OSError):
            while data := source.recv(65_536):
                if asking:
                    asked[:] = data[:8]
                    self.seen += data[: max(0, 4_000_000 - len(self.seen))]
                elif self.mode == "deaf" and asked != b"OPTIONS ":
                    self.swallowed += 1
                    break
                target.sendall(data)
        _close(source)
        _close(target)


def _close(one: socket.socket) -> None:
    with contextlib.suppress(OSError):
        one.shutdown(socket.SHUT_RDWR)
    with contextlib.suppress(OSError):
        one.close()
