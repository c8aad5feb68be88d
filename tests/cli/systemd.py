"""Receives the messages that a service sends to systemd."""

from __future__ import annotations

import queue
import socket
import threading
from pathlib import Path

__all__ = ["Systemd"]

_MESSAGE_S_MAX = 240
_END = b"end"


class Systemd:
    """Reads at once, as systemd does: the socket holds only a few messages."""

    def __init__(self, path: Path) -> None:
        self.environment = {"NOTIFY_SOCKET": str(path), "WATCHDOG_USEC": "400000"}
        self._path = path
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(str(path))
        self._messages: queue.Queue[str] = queue.Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def wait_for(self, line: str) -> list[str]:
        """Return all messages up to the one with this line."""
        messages: list[str] = []
        while line not in (messages[-1].splitlines() if messages else ()):
            messages.append(self._messages.get(timeout=_MESSAGE_S_MAX))
        return messages

    def close(self) -> None:
        self._socket.sendto(_END, str(self._path))
        self._reader.join()
        self._socket.close()

    def _read(self) -> None:
        while (message := self._socket.recv(4096)) != _END:
            self._messages.put(message.decode())
