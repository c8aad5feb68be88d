"""PostgreSQL's protocol as bytes, for what no driver sends."""

from __future__ import annotations

import contextlib
import socket
import struct
from collections.abc import Iterator

__all__ = ["exactly", "letters", "message", "raw", "startup", "told"]


def message(letter: bytes, body: bytes) -> bytes:
    return letter + struct.pack(">i", len(body) + 4) + body


def startup(protocol: int = 196_608, **names: str) -> bytes:
    told = b"".join(f"{name}\0{value}\0".encode() for name, value in {"user": "me", **names}.items())
    body = struct.pack(">i", protocol) + told + b"\0"
    return struct.pack(">i", len(body) + 4) + body


@contextlib.contextmanager
def raw(port: int) -> Iterator[socket.socket]:
    """A connection that is ready."""
    with socket.create_connection(("127.0.0.1", port), 30) as wire:
        wire.sendall(startup())
        letters(wire, b"Z")
        yield wire


def letters(wire: socket.socket, last: bytes) -> bytes:
    """Of the messages up to one of this letter, or the end."""
    return b"".join(letter for letter, _ in told(wire, last))


def told(wire: socket.socket, last: bytes) -> list[tuple[bytes, bytes]]:
    found: list[tuple[bytes, bytes]] = []
    while not found or found[-1][0] != last:
        head = exactly(wire, 5)
        if len(head) < 5:
            return found
        found.append((head[:1], exactly(wire, struct.unpack(">i", head[1:])[0] - 4)))
    return found


def exactly(wire: socket.socket, count: int) -> bytes:
    found = b""
    while len(found) < count and (some := wire.recv(count - len(found))):
        found += some
    return found
