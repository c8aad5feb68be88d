"""Reports the state of a process to systemd: ready, stopping, still alive.

systemd passes the address of a datagram socket in ``NOTIFY_SOCKET``, and expects messages of lines ``NAME=VALUE``
(``man sd_notify``). An address that begins with ``@`` is in Linux' abstract namespace, which containers can pass on.
Without ``NOTIFY_SOCKET``, nothing is sent. The variables are for one process only: a child process that inherits them,
such as the embedded broker, would report itself as ready. So ``from_environment`` removes them.
"""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import MutableMapping
from typing import Self

from headrace.errors import ConfigError

__all__ = ["ServiceManager"]

_EXTEND_S = 60
_SEND_S = 5.0
_STATUS_CHARS_MAX = 200


class ServiceManager:
    """Only one thread may call ``alive``, and only one the other methods."""

    def __init__(self, address: str, watchdog_s: float | None) -> None:
        self._address = address
        self.watchdog_s = watchdog_s
        """Half of the time after which systemd ends a process that does not call ``alive``; None if it never does."""
        self.is_ready = False
        self._pinged_s = float("-inf")

    @classmethod
    def from_environment(cls, environment: MutableMapping[str, str] = os.environ) -> Self:
        address = environment.pop("NOTIFY_SOCKET", "")
        interval, pid = environment.pop("WATCHDOG_USEC", ""), environment.pop("WATCHDOG_PID", "")
        # The watchdog is for another process if the id is not that of this process.
        is_watched = address and interval.isdecimal() and int(interval) and pid in ("", str(os.getpid()))
        return cls(address, int(interval) / 2_000_000 if is_watched else None)

    @property
    def is_listening(self) -> bool:
        return bool(self._address)

    def starting(self, status: str) -> None:
        """Report what the start waits for, and extend systemd's timeout of the start by a minute."""
        if not self.is_ready:
            self._try_to_send(f"STATUS={_one_line(status)}", f"EXTEND_TIMEOUT_USEC={_EXTEND_S * 1_000_000}")

    def ready(self, status: str = "") -> None:
        """Report that the process serves. Later calls send nothing."""
        if not self.is_ready:
            self._send("READY=1", f"STATUS={_one_line(status)}")
            self.is_ready = True

    def alive(self) -> None:
        """Reset the watchdog. It sends at most two messages per ``watchdog_s``, however often it is called."""
        now_s = time.monotonic()
        if self.watchdog_s is not None and now_s - self._pinged_s >= self.watchdog_s / 2:
            self._pinged_s = now_s
            self._try_to_send("WATCHDOG=1")

    def stopping(self) -> None:
        self._try_to_send("STOPPING=1")

    def _try_to_send(self, *lines: str) -> None:
        """Send unless systemd is too busy to receive. It acts by itself on a message that never arrives."""
        with contextlib.suppress(ConfigError):
            self._send(*lines, timeout_s=0)

    def _send(self, *lines: str, timeout_s: float = _SEND_S) -> None:
        if not self._address:
            return
        address = f"\0{self._address[1:]}" if self._address.startswith("@") else self._address
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as datagrams:
                datagrams.settimeout(timeout_s)
                datagrams.connect(address)
                datagrams.send("\n".join(lines).encode())
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            raise ConfigError(
                f"cannot report to systemd at NOTIFY_SOCKET {self._address!r}: {reason}",
                hint="the unit must allow AF_UNIX (RestrictAddressFamilies=); or unset NOTIFY_SOCKET",
            ) from error


def _one_line(text: str) -> str:
    return " ".join(text.split())[:_STATUS_CHARS_MAX]
