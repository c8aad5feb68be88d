"""Noticing a peer that is gone without a word: the kernel asks it now and then whether it is still there."""

from __future__ import annotations

import socket

__all__ = ["keep_alive"]

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
