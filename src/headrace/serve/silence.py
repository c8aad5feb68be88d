"""How long the machine at the other end of a connection may leave unanswered what was sent to it.

Heartbeats fit into the kernel's buffer for hours, also those to a machine that is not there any more; by itself the
kernel would try for a quarter of an hour, and longer where the other side takes nothing.
"""

from __future__ import annotations

import asyncio
import socket

__all__ = ["limit_silence"]

_SILENT_MS_MAX = 60_000
# Other systems than Linux do not have it; there the kernel's own limit counts.
_OPTION = getattr(socket, "TCP_USER_TIMEOUT", None)


def limit_silence(transport: asyncio.BaseTransport) -> None:
    made = transport.get_extra_info("socket")
    if made is not None and _OPTION is not None:
        made.setsockopt(socket.IPPROTO_TCP, _OPTION, _SILENT_MS_MAX)
