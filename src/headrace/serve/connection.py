"""A connection of uvicorn's, with deadlines and bounds that it lacks."""

from __future__ import annotations

import asyncio
import http
from typing import Any

from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from headrace.serve.gate import Gate
from headrace.serve.problem import MEDIA_TYPE, Problem
from headrace.serve.safe_headers import SAFE_HEADERS
from headrace.serve.silence import limit_silence

__all__ = ["Connection"]


def _refusal(status: int, code: str, detail: str, step: str) -> bytes:
    """The whole of an answer to what never became a request."""
    problem = Problem.told(status, code, detail, step)
    told = {
        **SAFE_HEADERS,
        **problem.headers,
        "Content-Type": MEDIA_TYPE,
        "Content-Length": str(len(problem.body)),
        "Connection": "close",
    }
    line = f"HTTP/1.1 {status} {http.HTTPStatus(status).phrase}"
    return (
        "\r\n".join([line, *(f"{name}: {text}" for name, text in told.items()), "", ""]).encode()
        + problem.body
    )


_TOO_LARGE = _refusal(
    431,
    "HR-SERVE-HEAD",
    "the first line and the headers are too large together",
    "send less: long values in a body",
)
_FULL = _refusal(
    503, "HR-SERVE-FULL", "there are as many connections as there may be", "try again in a moment"
)
_FRAMING = 8
"""Chunks of one byte each are six times as large on the way."""
_AHEAD_MAX = 16
"""Requests of a connection that wait for the answers before theirs: each takes kilobytes, however short it is."""
_PARSED_BYTES = 1_024
"""At a time: so many bytes have a few requests at most, after which the limit is looked at again."""
_NOT_HTTP = _refusal(400, "HR-SERVE-HTTP", "this is not a request of HTTP/1.1", "speak HTTP/1.1, without TLS")


class _Flow(FlowControl):
    """uvicorn's, which reads on after each answer and with each piece of a body: not while it is held."""

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
        self._told_bytes = 0
        self._in_head = True
        self._receiving = True
        self._unparsed = b""
        """What came behind the requests that wait; nothing more is read until it is parsed."""
        self.incomplete_since: float | None = gate.clock.steady()
        self.unsent_since: float | None = None

    # What the gate asks

    def unsent_bytes(self) -> int:
        return self.transport.get_write_buffer_size()

    def is_receiving(self) -> bool:
        return self._receiving

    def drop(self) -> None:
        self.transport.abort()

    def evict(self, reason: str) -> None:
        self._gate.counts.closed["unread"] += 1
        self.drop()

    # What the event loop tells

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.flow = _Flow(transport)
        limit_silence(transport)
        if not self._gate.enter(self):
            transport.write(_FULL)
            transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._unparsed = b""
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

    def data_received(self, data: bytes) -> None:
        if self._unparsed:
            # Parsed here, it would leave the flow held: only what releases it goes on with what was kept.
            self._unparsed += data
        else:
            self._parse(data)

    def _parse(self, data: bytes) -> None:
        """uvicorn would make requests of all that has come, and read on after each answer."""
        self._unparsed = b""
        for at in range(0, len(data), _PARSED_BYTES):
            if self.transport.is_closing() or self.transport.get_protocol() is not self:
                return
            if len(self.pipeline) >= _AHEAD_MAX:
                self._unparsed = data[at:]
                self.flow.hold()
                # Until they are answered, the wait is ours.
                self.incomplete_since = None
                return
            self._parse_piece(data[at : at + _PARSED_BYTES])

    def _parse_on(self) -> None:
        if self._unparsed and len(self.pipeline) < _AHEAD_MAX:
            if self._receiving:
                self.incomplete_since = self._gate.clock.steady()
            self.flow.release()
            self._parse(self._unparsed)

    def _parse_piece(self, data: bytes) -> None:
        if not self._receiving and (self.cycle is None or self.cycle.response_complete):
            self._begin()
        limits = self._gate.limits
        self._head_bytes += len(data)
        # What came before this read was not the end of the head; what of this read is, the parser tells.
        if self._in_head and self._head_bytes > limits.head_bytes_max + len(data):
            self._refuse_head()
            return
        # A body is counted where it is read; what lies around it is not: extensions of chunks, trailers without an end.
        if self._head_bytes > limits.head_bytes_max + _FRAMING * limits.body_bytes_max + len(data):
            self._gate.counts.closed["too large"] += 1
            self.transport.abort()
            return
        super().data_received(data)

    def _refuse_head(self) -> None:
        self._gate.counts.closed["head too large"] += 1
        self.transport.write(_TOO_LARGE)
        self.transport.close()

    def send_400_response(self, msg: str) -> None:
        if self._told_bytes > self._gate.limits.head_bytes_max:
            self._refuse_head()
            return
        self._gate.counts.closed["not HTTP"] += 1
        self.transport.write(_NOT_HTTP)
        self.transport.close()

    def handle_websocket_upgrade(self) -> None:
        self._gate.leave(self)
        super().handle_websocket_upgrade()

    # What the parser tells

    def _begin(self) -> None:
        self._receiving = self._in_head = True
        self._head_bytes = self._told_bytes = 0
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

    def _count(self, *told: bytes) -> None:
        """Trailers count too. What is raised here ends the parsing."""
        self._told_bytes += sum(map(len, told)) + 4
        if self._told_bytes > self._gate.limits.head_bytes_max:
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
            # Idle from now on; uvicorn itself ends it after a while.
            self.incomplete_since = self._gate.clock.steady()
        super().on_response_complete()
        if self._unparsed:
            self.loop.call_soon(self._parse_on)

    def timeout_keep_alive_handler(self) -> None:
        # A close would wait for whoever never reads.
        if self.unsent_bytes():
            self.transport.abort()
        else:
            super().timeout_keep_alive_handler()
