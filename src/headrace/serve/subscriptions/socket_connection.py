"""A WebSocket of uvicorn's, with the deadlines and bounds that it lacks; see ``headrace.serve.connection``."""

from __future__ import annotations

import socket
from asyncio import BaseTransport
from typing import Any, cast

from uvicorn.protocols.utils import ClientDisconnected
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from headrace.serve.gate import Gate
from headrace.serve.silence import limit_silence

__all__ = ["SocketConnection"]

_SEND_BUFFER_BYTES = 128 * 1024
_PONG = b"\x8a"
"""The first byte of a pong frame."""


class SocketConnection(WebSocketsSansIOProtocol):
    def __init__(self, gate: Gate, **more: Any) -> None:
        super().__init__(**more)
        self._gate = gate
        self.incomplete_since: float | None = gate.clock.steady()
        self.unsent_since: float | None = None
        self._pong: bytes | None = None
        """The answer to the newest ping, kept until the subscriber reads on."""

    def settle(self) -> None:
        """It is known who it is and what it wants."""
        self.incomplete_since = None

    # What the gate asks

    def unsent_bytes(self) -> int:
        return self.transport.get_write_buffer_size()

    def is_receiving(self) -> bool:
        """Whoever listens has the deadline for the first message."""
        return False

    def drop(self) -> None:
        self.transport.abort()

    def evict(self, reason: str) -> None:
        self._gate.counts.closed["unread"] += 1
        self.drop()

    # What the event loop tells

    def connection_made(self, transport: BaseTransport) -> None:
        super().connection_made(transport)
        # Otherwise the kernel takes megabytes for each that does not read, before anybody notices.
        made = transport.get_extra_info("socket")
        if made is not None:
            made.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER_BYTES)
        limit_silence(transport)
        if not self._gate.enter(self):
            self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._gate.leave(self)
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._gate.note_unsent(self)

    def resume_writing(self) -> None:
        # Something was taken: it is slow, not dead.
        self.unsent_since = None
        self._gate.note_unsent(self)
        super().resume_writing()
        pong, self._pong = self._pong, None
        # Nothing may follow a close frame.
        if pong is not None and self.conn.close_sent is None:
            self.transport.write(pong)

    def handle_ping(self) -> None:
        """Only the newest ping needs a pong (RFC 6455). A subscriber that does not read gets it when it reads on."""
        if self.writable.is_set():
            super().handle_ping()
            return
        # Replies to all frames of this read: a reply to a close may be among them.
        for frame in self.conn.data_to_send():
            if frame[:1] == _PONG:
                self._pong = frame
            else:
                self.transport.write(frame)

    async def send(self, message: Any) -> None:
        """Whoever was closed for what it sent is gone; that is no fault of who still had something to tell it."""
        await self.writable.wait()
        if self.close_sent:
            raise ClientDisconnected
        await super().send(message)

    def handle_connect(self, event: Any) -> None:
        super().handle_connect(event)
        if hasattr(self, "scope"):
            cast(dict[str, Any], self.scope)["headrace.settle"] = self.settle
