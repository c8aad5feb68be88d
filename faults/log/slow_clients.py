"""Slow clients: the bytes that each client sends, and the time by which the server must have closed its connection.

A client is a socket and an iterator. Each step of the iterator sends the bytes that are due. ``vanish`` makes a
connection half-open: this side drops it without sending a packet to the server.
"""

from __future__ import annotations

import contextlib
import os
import resource
import socket
import struct
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

__all__ = [
    "SlowClient",
    "allow_files",
    "connect",
    "is_closed",
    "open_files",
    "send_slowly",
    "send_without_reading",
    "vanish",
    "wait_until_closed",
]

_TCP_REPAIR = 19
# The kernel's TCP states in which the server has closed the connection.
_TIME_WAIT, _CLOSE, _CLOSE_WAIT, _LAST_ACK = 6, 7, 8, 9
_CLOSED_STATES = (_TIME_WAIT, _CLOSE, _CLOSE_WAIT, _LAST_ACK)
_EARLIEST_SHARE = 0.9


@dataclass(slots=True)
class SlowClient:
    """``deadline_s`` is the time from the start until the server must have closed the connection. With ``may_be_early``
    the server may close it sooner, because other clients need the resources.
    """

    name: str
    connection: socket.socket
    steps: Iterator[None]
    deadline_s: float
    may_be_early: bool = False
    closed_s: float | None = None


def connect(port: int, receive_buffer: int = 4_096, source: str = "127.0.0.1") -> socket.socket:
    connection = socket.socket()
    if receive_buffer:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    connection.settimeout(20)
    connection.bind((source, 0))
    connection.connect(("127.0.0.1", port))
    return connection


def send_slowly(connection: socket.socket, data: bytes, every_s: float, first: bytes = b"") -> Iterator[None]:
    """Send ``first`` at once, then one byte every ``every_s`` seconds, but never the last byte."""
    connection.sendall(first)
    began = time.monotonic()
    for number, byte in enumerate(data[:-1]):
        while time.monotonic() < began + number * every_s:
            yield
        connection.send(bytes([byte]))


def send_without_reading(
    connection: socket.socket, request: bytes, count: int, first: bytes = b""
) -> Iterator[None]:
    """Send many requests, and never read a response."""
    if first:
        connection.sendall(first)
    connection.setblocking(False)
    unsent = request * count
    while unsent:
        with contextlib.suppress(BlockingIOError):
            unsent = unsent[connection.send(unsent) :]
        yield
    while True:
        yield


def is_closed(connection: socket.socket) -> bool:
    """Whether the server has closed the connection. Does not read the bytes that the server sent."""
    state = struct.unpack("B", connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1))[0]
    return bool(state in _CLOSED_STATES)


def vanish(connection: socket.socket) -> bool:
    """Close without sending a packet. Return False if the kernel does not allow it."""
    try:
        connection.setsockopt(socket.IPPROTO_TCP, _TCP_REPAIR, 1)
    except PermissionError:
        return False
    connection.close()
    return True


def wait_until_closed(clients: Sequence[SlowClient], slack_s: float) -> list[str]:
    """Run the clients until the server has closed each. Return a problem for each that was closed too late or too
    early.
    """
    began = time.monotonic()
    while open_clients := [client for client in clients if client.closed_s is None]:
        now_s = time.monotonic() - began
        if all(now_s > client.deadline_s + slack_s for client in open_clients):
            break
        for slow_client in open_clients:
            try:
                next(slow_client.steps, None)
                if not is_closed(slow_client.connection):
                    continue
            except OSError:
                pass
            slow_client.closed_s = time.monotonic() - began
        time.sleep(0.05)
    return [problem for client in clients if (problem := _problem(client, slack_s))]


def _problem(client: SlowClient, slack_s: float) -> str:
    if client.closed_s is None:
        return f"{client.name}: not closed after {client.deadline_s + slack_s:.0f} s"
    if client.closed_s < client.deadline_s * _EARLIEST_SHARE and not client.may_be_early:
        return f"{client.name}: closed after {client.closed_s:.1f} s, although {client.deadline_s:g} s were allowed"
    if client.closed_s > client.deadline_s + slack_s:
        return f"{client.name}: closed too late, after {client.closed_s:.1f} s"
    return ""


def open_files(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


def allow_files(count: int) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < count:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(count, hard), hard))
