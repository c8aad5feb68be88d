"""What the kernel does for us: it asks a silent peer now and then whether it is still there, and lets go of one at once
when told to.
"""

from __future__ import annotations

import contextlib
import socket
import struct

__all__ = ["keep_alive", "leave_nothing"]

# Within two minutes. Not every system has all of them.
_OPTIONS = (
    (socket.SOL_SOCKET, "SO_KEEPALIVE", 1),
    (socket.IPPROTO_TCP, "TCP_KEEPIDLE", 60),
    (socket.IPPROTO_TCP, "TCP_KEEPINTVL", 15),
    (socket.IPPROTO_TCP, "TCP_KEEPCNT", 4),
)


def keep_alive(connected: socket.socket) -> None:
    for level, name, value in _OPTIONS:
        if hasattr(socket, name):
            connected.setsockopt(level, getattr(socket, name), value)


def leave_nothing(connected: socket.socket) -> None:
    """When it is closed, what was not taken is dropped; else the kernel keeps megabytes for a peer that never reads."""
    with contextlib.suppress(OSError):  # It may be closed already.
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
