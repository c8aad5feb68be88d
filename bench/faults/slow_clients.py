"""Clients that take all the time there is: what each sends, and when the server must have let go of it.

A client is a socket and an iterator; each step of the iterator sends what is due by then. ``vanish`` makes a connection
half-open: this side forgets it, and the other side is told nothing.
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
    "never_reading",
    "open_files",
    "trickling",
    "vanish",
    "wait_until_let_go",
]

_TCP_REPAIR = 19
# Of the kernel: FIN_WAIT2 is our half closed and theirs not; CLOSE_WAIT is theirs closed.
_TIME_WAIT, _CLOSE, _CLOSE_WAIT, _LAST_ACK = 6, 7, 8, 9
_GONE = (_TIME_WAIT, _CLOSE, _CLOSE_WAIT, _LAST_ACK)
_EARLY = 0.9


@dataclass(slots=True)
class SlowClient:
    """``deadline_s`` is from its begin to when the server must have closed it; ``may_be_early`` where the server may do
    so sooner, since it holds what others need.
    """

    name: str
    connection: socket.socket
    steps: Iterator[None]
    deadline_s: float
    may_be_early: bool = False
    closed_s: float | None = None


def connect(port: int, receive_buffer: int = 4_096, source: str = "127.0.0.1") -> socket.socket:
    made = socket.socket()
    if receive_buffer:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    made.settimeout(20)
    made.bind((source, 0))
    made.connect(("127.0.0.1", port))
    return made


def trickling(connection: socket.socket, whole: bytes, every_s: float, first: bytes = b"") -> Iterator[None]:
    """``first`` at once, then a byte now and then; the last one never comes."""
    connection.sendall(first)
    began = time.monotonic()
    for number, byte in enumerate(whole[:-1]):
        while time.monotonic() < began + number * every_s:
            yield
        connection.send(bytes([byte]))


def never_reading(
    connection: socket.socket, request: bytes, count: int, first: bytes = b""
) -> Iterator[None]:
    """Asks for much, and takes nothing."""
    if first:
        connection.sendall(first)
    connection.setblocking(False)
    left = request * count
    while left:
        with contextlib.suppress(BlockingIOError):
            left = left[connection.send(left) :]
        yield
    while True:
        yield


def is_closed(connection: socket.socket) -> bool:
    """Whether the other side has hung up; what it sent is left where it is, unread."""
    state = struct.unpack("B", connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1))[0]
    return bool(state in _GONE)


def vanish(connection: socket.socket) -> bool:
    """Close without a packet; False where the kernel does not let us."""
    try:
        connection.setsockopt(socket.IPPROTO_TCP, _TCP_REPAIR, 1)
    except PermissionError:
        return False
    connection.close()
    return True


def wait_until_let_go(clients: Sequence[SlowClient], slack_s: float) -> list[str]:
    """Let each do what it does until it is closed; what was not closed at its deadline, or before it."""
    began = time.monotonic()
    while waiting := [one for one in clients if one.closed_s is None]:
        now_s = time.monotonic() - began
        if all(now_s > one.deadline_s + slack_s for one in waiting):
            break
        for one in waiting:
            try:
                next(one.steps, None)
                if not is_closed(one.connection):
                    continue
            except OSError:
                pass
            one.closed_s = time.monotonic() - began
        time.sleep(0.05)
    return [problem for one in clients if (problem := _problem(one, slack_s))]


def _problem(client: SlowClient, slack_s: float) -> str:
    if client.closed_s is None:
        return f"{client.name}: not closed after {client.deadline_s + slack_s:.0f} s"
    if client.closed_s < client.deadline_s * _EARLY and not client.may_be_early:
        return f"{client.name}: closed after {client.closed_s:.1f} s, {client.deadline_s:g} s were allowed"
    if client.closed_s > client.deadline_s + slack_s:
        return f"{client.name}: closed after {client.closed_s:.1f} s only"
    return ""


def open_files(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


def allow_files(wanted: int) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(wanted, hard), hard))
