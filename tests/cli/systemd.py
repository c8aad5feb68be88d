"""Receives the messages that a service sends to systemd."""

from __future__ import annotations

import socket
from pathlib import Path

__all__ = ["Systemd"]


class Systemd:
    """The receiver of the messages of one service."""

    def __init__(self, path: Path) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(str(path))
        self._socket.settimeout(120)
        self.environment = {"NOTIFY_SOCKET": str(path), "WATCHDOG_USEC": "400000"}

    def wait_for(self, line: str) -> list[str]:
        """Return all messages up to the one with this line."""
        messages: list[str] = []
        while line not in (messages[-1].splitlines() if messages else ()):
            messages.append(self._socket.recv(4096).decode())
        return messages

    def close(self) -> None:
        self._socket.close()
