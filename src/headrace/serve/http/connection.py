"""uvicorn's HTTP connection, with the deadlines and limits that uvicorn lacks.

uvicorn has no deadline for receiving a request and none for sending a response. ``Gate`` enforces both deadlines with a
sweep once a second.

At the connection limit, the gate closes the connection that has waited longest for a complete request, and admits the
new connection. A normal client is in that state only for milliseconds.

One account counts the response bytes that clients have not read, for all connections together, including those of the
PostgreSQL protocol. When the account exceeds its limit, it closes the connection that has held unread bytes longest.
"""

from __future__ import annotations

import asyncio
import http
import socket
from typing import Any, Protocol

from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from headrace.broker.net.client_limits import Account, Holder
from headrace.clock import Clock
from headrace.serve.http.guard import SAFE_HEADERS
from headrace.serve.http.limits import Limits
from headrace.serve.http.problem import MEDIA_TYPE, Problem
from headrace.serve.http.request_log import RequestMetrics

__all__ = ["INVALID_HANDSHAKE", "TOO_LARGE", "Connection", "Gate", "GatedConnection", "limit_silence"]


def _refusal(status: int, code: str, detail: str, step: str) -> bytes:
    """The raw response to bytes that cannot be parsed as a request."""
    problem = Problem.build(status, code, detail, step)
    headers = {
        **SAFE_HEADERS,
        **problem.headers,
        "Content-Type": MEDIA_TYPE,
        "Content-Length": str(len(problem.body)),
        "Connection": "close",
    }
    line = f"HTTP/1.1 {status} {http.HTTPStatus(status).phrase}"
    return (
        "\r\n".join([line, *(f"{name}: {text}" for name, text in headers.items()), "", ""]).encode()
        + problem.body
    )


TOO_LARGE = _refusal(
    431,
    "HR-SERVE-HEAD",
    "the request line and headers are too large",
    "send long values in the body",
)
_TOO_MANY_CONNECTIONS = _refusal(503, "HR-SERVE-FULL", "too many connections", "try again in a moment")
_FRAMING = 8
"""Maximum ratio of received bytes to body bytes. Chunked encoding with one-byte chunks multiplies the size by six."""
_PIPELINED_MAX = 16
"""Maximum pipelined requests that wait for earlier responses. Even a short request takes kilobytes of memory."""
_PARSED_BYTES = 1_024
"""Bytes to parse before the pipeline limit is checked again."""
_NOT_HTTP = _refusal(400, "HR-SERVE-HTTP", "this is not an HTTP/1.1 request", "send HTTP/1.1, without TLS")
INVALID_HANDSHAKE = _refusal(
    400,
    "HR-SERVE-HANDSHAKE",
    "a WebSocket handshake must be a GET request without a body",
    "remove the body, and the headers Content-Length and Transfer-Encoding",
)


class _Flow(FlowControl):
    """uvicorn resumes reading after each response and each chunk of a body. This class does not resume reading between
    ``hold`` and ``release``.
    """

    _is_held = False

    def hold(self) -> None:
        self._is_held = True
        self.pause_reading()

    def release(self) -> None:
        self._is_held = False
        self.resume_reading()

    def resume_reading(self) -> None:
        if not self._is_held:
            super().resume_reading()


class Connection(HttpToolsProtocol):
    flow: _Flow

    def __init__(self, gate: Gate, **more: Any) -> None:
        super().__init__(**more)
        self._gate = gate
        self._head_bytes = 0
        self._parsed_head_bytes = 0
        self._in_head = True
        self._receiving = True
        self._unparsed = b""
        """Bytes received after the pipeline was full; reading is paused until they are parsed."""
        self.incomplete_since: float | None = gate.clock.steady()
        self.unsent_since: float | None = None

    # Called by the gate

    def unsent_bytes(self) -> int:
        return self.transport.get_write_buffer_size()

    def is_receiving(self) -> bool:
        return self._receiving

    def drop(self) -> None:
        self.transport.abort()

    def evict(self, reason: str) -> None:
        self._gate.metrics.closed["unread"] += 1
        self.drop()

    # Callbacks of the event loop

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.flow = _Flow(transport)
        limit_silence(transport)
        if not self._gate.enter(self):
            transport.write(_TOO_MANY_CONNECTIONS)
            transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._unparsed = b""
        self._gate.leave(self)
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._gate.note_unsent(self)

    def resume_writing(self) -> None:
        # The client has read some bytes, so it is slow, not dead.
        self.unsent_since = None
        self._gate.note_unsent(self)
        super().resume_writing()

    def data_received(self, data: bytes) -> None:
        if self._unparsed:
            # Preserve the order: _parse_on first parses the earlier bytes, then resumes reading.
            self._unparsed += data
        else:
            self._parse(data)

    def _parse(self, data: bytes) -> None:
        """Parse until the pipeline is full. uvicorn itself would parse all received bytes."""
        self._unparsed = b""
        for at in range(0, len(data), _PARSED_BYTES):
            if self.transport.is_closing() or self.transport.get_protocol() is not self:
                return
            if len(self.pipeline) >= _PIPELINED_MAX:
                self._unparsed = data[at:]
                self.flow.hold()
                # The client cannot send more until some of these requests are answered, so no deadline applies.
                self.incomplete_since = None
                return
            self._parse_chunk(data[at : at + _PARSED_BYTES])

    def _parse_on(self) -> None:
        if self._unparsed and len(self.pipeline) < _PIPELINED_MAX:
            if self._receiving:
                self.incomplete_since = self._gate.clock.steady()
            self.flow.release()
            self._parse(self._unparsed)

    def _parse_chunk(self, data: bytes) -> None:
        if not self._receiving and (self.cycle is None or self.cycle.response_complete):
            self._begin()
        limits = self._gate.limits
        self._head_bytes += len(data)
        # All bytes before this chunk belong to the head. Only the parser knows how many bytes of this chunk do.
        if self._in_head and self._head_bytes > limits.head_bytes_max + len(data):
            self._refuse_head()
            return
        # The application limits the body, but not the chunk extensions and trailers.
        if self._head_bytes > limits.head_bytes_max + _FRAMING * limits.body_bytes_max + len(data):
            self._gate.metrics.closed["too large"] += 1
            self.transport.abort()
            return
        super().data_received(data)

    def _refuse_head(self) -> None:
        self._gate.metrics.closed["head too large"] += 1
        self.transport.write(TOO_LARGE)
        self.transport.close()

    def send_400_response(self, msg: str) -> None:
        if self._parsed_head_bytes > self._gate.limits.head_bytes_max:
            self._refuse_head()
            return
        self._gate.metrics.closed["not HTTP"] += 1
        self.transport.write(_NOT_HTTP)
        self.transport.close()

    def handle_websocket_upgrade(self) -> None:
        self._gate.leave(self)
        super().handle_websocket_upgrade()

    # Callbacks of the parser

    def _begin(self) -> None:
        self._receiving = self._in_head = True
        self._head_bytes = self._parsed_head_bytes = 0
        self.incomplete_since = self._gate.clock.steady()

    def on_message_begin(self) -> None:
        if not self._receiving:
            self._begin()
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        self._count(url)
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._count(name, value)
        super().on_header(name, value)

    def _count(self, *parts: bytes) -> None:
        """Add to the size of the head; trailers count too. Raising an exception here makes the parser stop."""
        self._parsed_head_bytes += sum(map(len, parts)) + 4
        if self._parsed_head_bytes > self._gate.limits.head_bytes_max:
            raise OverflowError

    def on_headers_complete(self) -> None:
        self._in_head = False
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._receiving = False
        self.incomplete_since = None
        super().on_message_complete()

    def on_response_complete(self) -> None:
        if not (self._receiving or self.pipeline or self._unparsed):
            # The connection is idle now. uvicorn closes it after the keep-alive timeout.
            self.incomplete_since = self._gate.clock.steady()
        super().on_response_complete()
        if self._unparsed:
            self.loop.call_soon(self._parse_on)

    def timeout_keep_alive_handler(self) -> None:
        # A graceful close would wait for the client to read the rest, even if it never reads.
        if self.unsent_bytes():
            self.transport.abort()
        else:
            super().timeout_keep_alive_handler()


_SILENT_MS_MAX = 60_000
# Only Linux has this option; elsewhere the kernel's own limit applies.
_TCP_USER_TIMEOUT = getattr(socket, "TCP_USER_TIMEOUT", None)


def limit_silence(transport: asyncio.BaseTransport) -> None:
    """Close the connection when the peer leaves sent bytes unacknowledged for a minute.

    If the peer's machine is dead, small heartbeats can fit into the kernel's send buffer for hours, so no write fails.
    By default the kernel retries for 15 minutes, and longer while the peer's receive window is zero.
    """
    connected = transport.get_extra_info("socket")
    if connected is not None and _TCP_USER_TIMEOUT is not None:
        connected.setsockopt(socket.IPPROTO_TCP, _TCP_USER_TIMEOUT, _SILENT_MS_MAX)


class GatedConnection(Holder, Protocol):
    incomplete_since: float | None
    """When the connection began to wait for a complete request; None while a request is being answered."""
    unsent_since: float | None
    """When the client stopped reading the response; None if no response bytes are unread."""

    def unsent_bytes(self) -> int: ...

    def is_receiving(self) -> bool:
        """True until the first request is complete, and while a later request arrives; False between requests."""

    def drop(self) -> None: ...


class Gate:
    """Limits the number of open connections, and the time that each client may take to send or to read."""

    def __init__(
        self, limits: Limits, metrics: RequestMetrics, clock: Clock, unsent: Account[Holder] | None = None
    ) -> None:
        self.limits = limits
        self.metrics = metrics
        self.clock = clock
        self._unsent = unsent or Account("answers", limits.unsent_bytes_max)
        self._connections: set[GatedConnection] = set()

    @property
    def count(self) -> int:
        return len(self._connections)

    def enter(self, connection: GatedConnection) -> bool:
        """Admit a connection. Return False at the limit if every open connection has sent a complete request."""
        if len(self._connections) >= self.limits.connections_max:
            waiting = [other for other in self._connections if other.incomplete_since is not None]
            if not waiting:
                self.metrics.closed["full"] += 1
                return False
            self._drop(min(waiting, key=lambda other: other.incomplete_since or 0.0), "made room")
        self._connections.add(connection)
        return True

    def leave(self, connection: GatedConnection) -> None:
        self._unsent.set_usage(connection, 0)
        self._connections.discard(connection)

    def note_unsent(self, connection: GatedConnection) -> None:
        """Update the account after the connection's write buffer has changed."""
        self._unsent.set_usage(connection, connection.unsent_bytes())

    def sweep(self) -> None:
        now = self.clock.steady()
        for connection in [*self._connections]:
            since = connection.incomplete_since
            if since is not None and connection.is_receiving() and now - since > self.limits.receive_s:
                self._drop(connection, "slow to send")
                continue
            self.note_unsent(connection)
            if connection.unsent_bytes() == 0:
                connection.unsent_since = None
            elif connection.unsent_since is None:
                connection.unsent_since = now
            elif now - connection.unsent_since > self.limits.send_s:
                self._drop(connection, "slow to read")

    def _drop(self, connection: GatedConnection, reason: str) -> None:
        self.metrics.closed[reason] += 1
        self._connections.discard(connection)
        connection.drop()
