"""The port that Prometheus asks: one page over HTTP, and nothing else.

It is small because little is asked of it, and bounded because anyone may ask: a request has a few seconds and a few
kilobytes, few are served at once, and what was collected is good for a second. When there are too many, the one that
has been without a whole request for longest makes room: so silent connections keep nobody out. A request must name a
host that the port is known by, so that no page of another site reads metrics through a browser.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress

from headrace.broker.address import is_loopback
from headrace.broker.exposition import CONTENT_TYPE
from headrace.broker.host_names import HostNames
from headrace.clock import Clock

__all__ = ["MetricsPort"]

_HEAD_BYTES_MAX = 8 * 1024
_DEADLINE_S = 5.0
_ACCEPTED_AT_ONCE = 16
_AT_ONCE_MAX = 4 * _ACCEPTED_AT_ONCE
"""A request that has come is read two turns of the loop after its connection: those of a burst behind it must not make
it the one without a request for longest before that.
"""
_GOOD_FOR_S = 1.0
_PIECE_BYTES = 64 * 1024


class MetricsPort:
    """``collect`` makes the page. ``hosts`` are names that it is known by, besides the one that it listens on."""

    def __init__(
        self,
        collect: Callable[[], Awaitable[bytes]],
        clock: Clock,
        *,
        hosts: Sequence[str] = (),
        deadline_s: float = _DEADLINE_S,
    ) -> None:
        self._collect = collect
        self._clock = clock
        self._deadline_s = deadline_s
        self._given_hosts = hosts
        self._hosts = HostNames(hosts)
        self._listening: asyncio.Server | None = None
        self._open: set[asyncio.StreamWriter] = set()
        self._unasked: dict[asyncio.StreamWriter, None] = {}
        """Those of whom no whole request has come, the oldest first."""
        self._page = b""
        self._collected_at = float("-inf")
        self._collecting = asyncio.Lock()

    @property
    def port(self) -> int:
        assert self._listening is not None
        return int(self._listening.sockets[0].getsockname()[1])

    async def listen(self, host: str, port: int) -> None:
        self._hosts = HostNames([host, *self._given_hosts], any_address=not is_loopback(host))
        self._listening = await asyncio.start_server(
            self._serve, host, port, limit=_HEAD_BYTES_MAX, backlog=_ACCEPTED_AT_ONCE
        )

    async def close(self) -> None:
        if self._listening is not None:
            self._listening.close()
        for writer in list(self._open):
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if not self._has_room():
            writer.transport.abort()
            return
        self._open.add(writer)
        self._unasked[writer] = None
        try:
            with suppress(OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
                async with asyncio.timeout(self._deadline_s):
                    head = await reader.readuntil(b"\r\n\r\n")
                    self._unasked.pop(writer, None)
                    await self._send(writer, *await self._answer(head))
                    writer.close()
                    await writer.wait_closed()
        finally:
            self._forget(writer)
            # After a clean end there is nothing left that this could cut off.
            writer.transport.abort()

    def _has_room(self) -> bool:
        if len(self._open) < _AT_ONCE_MAX:
            return True
        oldest = next(iter(self._unasked), None)
        if oldest is None:
            return False
        self._forget(oldest)
        oldest.transport.abort()
        return True

    def _forget(self, writer: asyncio.StreamWriter) -> None:
        self._open.discard(writer)
        self._unasked.pop(writer, None)

    @staticmethod
    async def _send(writer: asyncio.StreamWriter, head: bytes, body: bytes) -> None:
        """Piece by piece: all who ask share one page, and none has a copy of it."""
        writer.write(head)
        for at in range(0, len(body), _PIECE_BYTES):
            writer.write(body[at : at + _PIECE_BYTES])
            await writer.drain()
        await writer.drain()

    async def _answer(self, head: bytes) -> tuple[bytes, bytes]:
        """Head and body."""
        line, *headers = head.split(b"\r\n")
        pairs = (header.partition(b":") for header in headers)
        hosts = [value.strip().decode("latin-1") for name, _, value in pairs if name.lower() == b"host"]
        if not self._hosts.has(hosts):
            return _response(400, b"this port is not known by that Host; see metrics.hosts\n", "text/plain")
        method, _, rest = line.partition(b" ")
        path = rest.partition(b" ")[0].partition(b"?")[0]
        if method not in (b"GET", b"HEAD"):
            return _response(405, b"only GET is answered here\n", "text/plain")
        if path != b"/metrics":
            return _response(404, b"see /metrics\n", "text/plain")
        page = await self._fresh()
        return _response(200, page, CONTENT_TYPE, with_body=method == b"GET")

    async def _fresh(self) -> bytes:
        async with self._collecting:
            now = self._clock.steady()
            if now - self._collected_at > _GOOD_FOR_S:
                self._page = await self._collect()
                self._collected_at = now
            return self._page


_REASONS = {200: "OK", 400: "Bad Request", 404: "Not Found", 405: "Method Not Allowed"}


def _response(status: int, body: bytes, content_type: str, *, with_body: bool = True) -> tuple[bytes, bytes]:
    head = (
        f"HTTP/1.1 {status} {_REASONS[status]}\r\nContent-Type: {content_type}\r\n"
        f"Content-Length: {len(body)}\r\nX-Content-Type-Options: nosniff\r\nConnection: close\r\n\r\n"
    )
    return head.encode(), body if with_body else b""
