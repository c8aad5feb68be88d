"""The HTTP endpoint for Prometheus. It serves one page, ``/metrics``.

Anyone can connect, so the time and size of a request, the number of connections and the rate of collections are
limited. A collected page is served for one second. If too many connections are open, the endpoint closes the connection
that has waited longest without a complete request, so silent connections do not block others. The Host header must have
one of the endpoint's own names, so that a page of another site cannot read the metrics through a browser.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress

from headrace.broker.metrics.exposition import CONTENT_TYPE
from headrace.broker.net.address import HostNames, is_loopback
from headrace.clock import Clock

__all__ = ["MetricsPort"]

_HEAD_BYTES_MAX = 8 * 1024
_DEADLINE_S = 5.0
_ACCEPTED_AT_ONCE = 16
_CONNECTIONS_MAX = 4 * _ACCEPTED_AT_ONCE
"""The event loop reads a request two iterations after it accepts the connection, and meanwhile it can accept further
connections. The limit must be higher than their number. Otherwise they would evict the connection before its request
is read.
"""
_VALID_S = 1.0
_PIECE_BYTES = 64 * 1024


class MetricsPort:
    """The metrics endpoint. ``collect`` builds the page. ``hosts`` are accepted host names besides its address."""

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
        self._extra_hosts = hosts
        self._hosts = HostNames(hosts)
        self._listening: asyncio.Server | None = None
        self._open: set[asyncio.StreamWriter] = set()
        self._silent: dict[asyncio.StreamWriter, None] = {}
        """Connections without a complete request, oldest first."""
        self._page = b""
        self._collected_at = float("-inf")
        self._collecting = asyncio.Lock()

    @property
    def port(self) -> int:
        assert self._listening is not None
        return int(self._listening.sockets[0].getsockname()[1])

    async def listen(self, host: str, port: int) -> None:
        self._hosts = HostNames([host, *self._extra_hosts], any_address=not is_loopback(host))
        self._listening = await asyncio.start_server(
            self._serve, host, port, limit=_HEAD_BYTES_MAX, backlog=_ACCEPTED_AT_ONCE
        )

    async def close(self) -> None:
        if self._listening is not None:
            self._listening.close()
        for writer in list(self._open):
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if not self._make_room():
            writer.transport.abort()
            return
        self._open.add(writer)
        self._silent[writer] = None
        try:
            with suppress(OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
                async with asyncio.timeout(self._deadline_s):
                    head = await reader.readuntil(b"\r\n\r\n")
                    self._silent.pop(writer, None)
                    await self._send(writer, *await self._respond(head))
                    writer.close()
                    await writer.wait_closed()
        finally:
            self._forget(writer)
            # After a complete response this has no effect.
            writer.transport.abort()

    def _make_room(self) -> bool:
        """Close the oldest silent connection if too many are open. Returns false if a new one must be refused."""
        if len(self._open) < _CONNECTIONS_MAX:
            return True
        oldest = next(iter(self._silent), None)
        if oldest is None:
            return False
        self._forget(oldest)
        oldest.transport.abort()
        return True

    def _forget(self, writer: asyncio.StreamWriter) -> None:
        self._open.discard(writer)
        self._silent.pop(writer, None)

    @staticmethod
    async def _send(writer: asyncio.StreamWriter, head: bytes, body: bytes) -> None:
        """Send the page in pieces, so that connections share the page and buffer only a piece of it."""
        writer.write(head)
        for position in range(0, len(body), _PIECE_BYTES):
            writer.write(body[position : position + _PIECE_BYTES])
            await writer.drain()
        await writer.drain()

    async def _respond(self, head: bytes) -> tuple[bytes, bytes]:
        """Return the head and the body of the response."""
        line, *headers = head.split(b"\r\n")
        pairs = (header.partition(b":") for header in headers)
        hosts = [value.strip().decode("latin-1") for name, _, value in pairs if name.lower() == b"host"]
        if not self._hosts.has(hosts):
            return _response(400, b"unknown Host header: add the host name to metrics.hosts\n", "text/plain")
        method, _, rest = line.partition(b" ")
        path = rest.partition(b" ")[0].partition(b"?")[0]
        if method not in (b"GET", b"HEAD"):
            return _response(405, b"unsupported method: use GET or HEAD\n", "text/plain")
        if path != b"/metrics":
            return _response(404, b"not found: the metrics are at /metrics\n", "text/plain")
        page = await self._current_page()
        return _response(200, page, CONTENT_TYPE, with_body=method == b"GET")

    async def _current_page(self) -> bytes:
        async with self._collecting:
            now = self._clock.steady()
            if now - self._collected_at > _VALID_S:
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
