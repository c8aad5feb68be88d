"""uvicorn's WebSocket connection, with the deadlines and limits that uvicorn lacks (see
``headrace.serve.http.connection``).
"""

from __future__ import annotations

import socket
from asyncio import BaseTransport, WriteTransport
from typing import Any, cast

from uvicorn.protocols.utils import ClientDisconnected
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.exceptions import InvalidMessage

from headrace.serve.http.connection import INVALID_HANDSHAKE, TOO_LARGE, Gate, limit_silence

__all__ = ["WebSocketConnection"]

_SEND_BUFFER_BYTES = 128 * 1024
_PONG = b"\x8a"
"""The first byte of a pong frame."""


class WebSocketConnection(WebSocketsSansIOProtocol):
    def __init__(self, gate: Gate, **more: Any) -> None:
        super().__init__(**more)
        self._gate = gate
        self.incomplete_since: float | None = gate.clock.steady()
        self.unsent_since: float | None = None
        self._pong: bytes | None = None
        """The pong for the newest ping, stored until the subscriber reads again."""

    def settle(self) -> None:
        """Mark the first message as accepted, so that the gate no longer closes this connection to admit another."""
        self.incomplete_since = None

    # Called by the gate

    def unsent_bytes(self) -> int:
        return self.transport.get_write_buffer_size()

    def is_receiving(self) -> bool:
        """Always false, because ``WebSocketSession`` enforces the deadline for the first message."""
        return False

    def drop(self) -> None:
        self.transport.abort()

    def evict(self, reason: str) -> None:
        self._gate.metrics.closed["unread"] += 1
        self.drop()

    # Called by the event loop

    def connection_made(self, transport: BaseTransport) -> None:
        super().connection_made(transport)
        # Limit the kernel's send buffer. Otherwise it holds megabytes for each slow client before the gate detects it.
        connected = transport.get_extra_info("socket")
        if connected is not None:
            connected.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER_BYTES)
        # Wait with the next message until this one is sent. So at most one message per subscriber is unsent, and a slow
        # subscriber gets several steps in one message.
        cast(WriteTransport, transport).set_write_buffer_limits(high=0)
        limit_silence(transport)
        if not self._gate.enter(self):
            self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._gate.leave(self)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        # uvicorn ignores a handshake that the library cannot parse. The client would wait forever.
        if self.conn.handshake_exc is not None and not self.handshake_initiated:
            is_invalid = isinstance(self.conn.handshake_exc, InvalidMessage)
            self._gate.metrics.closed["invalid handshake" if is_invalid else "head too large"] += 1
            self.transport.write(INVALID_HANDSHAKE if is_invalid else TOO_LARGE)
            self.transport.close()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._gate.note_unsent(self)

    def resume_writing(self) -> None:
        # The client has read some bytes, so it is slow, not dead.
        self.unsent_since = None
        self._gate.note_unsent(self)
        super().resume_writing()
        pong, self._pong = self._pong, None
        # No frame may follow a close frame.
        if pong is not None and self.conn.close_sent is None:
            self.transport.write(pong)

    def handle_ping(self) -> None:
        """Answer only the newest ping, as RFC 6455 allows. A subscriber that does not read gets the pong when it reads
        again.
        """
        if self.writable.is_set():
            super().handle_ping()
            return
        # These are the replies to all received frames, which can include a reply to a close frame.
        for frame in self.conn.data_to_send():
            if frame[:1] == _PONG:
                self._pong = frame
            else:
                self.transport.write(frame)

    async def send(self, message: Any) -> None:
        """Raise ``ClientDisconnected`` if the connection was closed, for example because of a protocol violation. This
        is not an internal error.
        """
        await self.writable.wait()
        if self.close_sent:
            raise ClientDisconnected
        await super().send(message)

    def handle_connect(self, event: Any) -> None:
        super().handle_connect(event)
        if hasattr(self, "scope"):
            cast(dict[str, Any], self.scope)["headrace.settle"] = self.settle
