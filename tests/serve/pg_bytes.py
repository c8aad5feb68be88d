"""PostgreSQL's protocol as bytes, for messages that no driver sends."""

from __future__ import annotations

import contextlib
import socket
import struct
from collections.abc import Iterator

__all__ = ["exactly", "letters", "message", "raw", "read_until", "startup"]


def message(letter: bytes, body: bytes) -> bytes:
    return letter + struct.pack(">i", len(body) + 4) + body


def startup(protocol: int = 196_608, **names: str) -> bytes:
    pairs = b"".join(f"{name}\0{value}\0".encode() for name, value in {"user": "me", **names}.items())
    body = struct.pack(">i", protocol) + pairs + b"\0"
    return struct.pack(">i", len(body) + 4) + body


@contextlib.contextmanager
def raw(port: int) -> Iterator[socket.socket]:
    """Yield a connection after its login."""
    with socket.create_connection(("127.0.0.1", port), 30) as wire:
        wire.sendall(startup())
        letters(wire, b"Z")
        yield wire


def letters(wire: socket.socket, last: bytes) -> bytes:
    """Return the type letters of the messages up to the first ``last``, or to the end of the connection."""
    return b"".join(letter for letter, _ in read_until(wire, last))


def read_until(wire: socket.socket, last: bytes) -> list[tuple[bytes, bytes]]:
    messages: list[tuple[bytes, bytes]] = []
    while not messages or messages[-1][0] != last:
        head = exactly(wire, 5)
        if len(head) < 5:
            return messages
        messages.append((head[:1], exactly(wire, struct.unpack(">i", head[1:])[0] - 4)))
    return messages


def exactly(wire: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count and (chunk := wire.recv(count - len(data))):
        data += chunk
    return data
