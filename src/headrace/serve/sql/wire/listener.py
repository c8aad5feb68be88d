"""The listener for PostgreSQL's protocol: accepts connections in the server's event loop, and limits their number."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import socket
from collections import Counter
from dataclasses import dataclass

from headrace.serve.http.connection import limit_silence
from headrace.serve.http.tokens import Caller
from headrace.serve.sql.wire import frames
from headrace.serve.sql.wire.channel import Channel, ConnectionEnded
from headrace.serve.sql.wire.context import MemoryQuota, WireContext
from headrace.serve.sql.wire.session import Session

__all__ = ["Admission", "ConnectionRefused", "Listener"]

_BUFFER_BYTES = 64 * 1024
_ENTRIES_MAX = 400
_KEEPALIVE = (("TCP_KEEPIDLE", 60), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 6))


class Listener:
    def __init__(self, context: WireContext) -> None:
        self._context = context
        self._sessions: dict[int, Session] = {}
        limits = context.serve.limits
        self._admission = Admission(
            limits.pg_connections_max, limits.pg_per_address_max, limits.pg_per_token_max
        )
        self._tasks: set[asyncio.Task[None]] = set()
        self._numbers = itertools.count(1)
        self._server: asyncio.Server | None = None

    async def start(self, listening_socket: socket.socket) -> None:
        self._server = await asyncio.start_server(self._serve, sock=listening_socket, limit=_BUFFER_BYTES)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        context, metrics, limits = self._context, self._context.metrics, self._context.serve.limits
        metrics.accepted += 1
        metrics.connections += 1
        number = next(self._numbers) % 2**31
        try:
            _keep_alive(writer)
            limit_silence(writer.transport)
            channel = Channel(reader, writer, limits, context.unsent, metrics.note_evicted)
            try:
                dropped = self._admission.connect(number, channel.peer)
            except ConnectionRefused as refused:
                metrics.ended["full"] += 1
                writer.write(_encode(refused))
                return
            if dropped is not None:
                metrics.ended["made room"] += 1
                self._sessions[dropped].drop()
            session = Session(
                context,
                channel,
                number,
                MemoryQuota(metrics.memory, 2 * limits.answer_bytes_max, _ENTRIES_MAX),
                cancel=self._cancel,
                enter=lambda caller: self._enter(number, caller),
            )
            self._sessions[number] = session
            await session.run()
        except ConnectionError:
            pass
        except asyncio.CancelledError:
            writer.transport.abort()
        except Exception as error:
            context.report(error)
        finally:
            # Count the connection until its socket is closed. Otherwise clients that do not read could keep an
            # unlimited number of sockets open.
            try:
                await _close(writer, limits.send_s)
            finally:
                metrics.connections -= 1
                self._sessions.pop(number, None)
                self._admission.disconnect(number)
                self._tasks.discard(task)

    def _enter(self, number: int, caller: Caller) -> None:
        try:
            self._admission.log_in(number, caller.token_id)
        except ConnectionRefused as refused:
            raise ConnectionEnded("full", _encode(refused)) from None

    def _cancel(self, number: int, secret: int) -> None:
        """Cancel a session's statement if the secret is right. The client does not learn whether it was right."""
        self._context.metrics.cancels += 1
        session = self._sessions.get(number)
        if session is not None and session.secret == secret:
            session.cancel()

    async def drain(self, time_s: float) -> None:
        """Stop accepting connections, and close each open one after its current statement."""
        if self._server is not None:
            self._server.close()
        for session in self._sessions.values():
            session.leave()
        if self._tasks:
            await asyncio.wait({*self._tasks}, timeout=time_s)

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
        tasks = [*self._tasks]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _encode(refused: ConnectionRefused) -> bytes:
    return frames.error("53300", refused.message, hint=refused.hint, fatal=True)


async def _close(writer: asyncio.StreamWriter, time_s: float) -> None:
    """Close the socket. Abort it if the client does not read the rest in time."""
    try:
        async with asyncio.timeout(time_s):
            writer.close()
            await writer.wait_closed()
    except (OSError, asyncio.CancelledError):
        writer.transport.abort()


def _keep_alive(writer: asyncio.StreamWriter) -> None:
    """Enable TCP keepalive, to detect clients whose machine or network has failed."""
    connected = writer.get_extra_info("socket")
    with contextlib.suppress(OSError):
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in _KEEPALIVE:
            if hasattr(socket, name):
                connected.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


_UNAUTHENTICATED_MAX = 20
"""How many connections beyond the limit may wait for a login. This leaves room for cancel requests."""


class ConnectionRefused(Exception):
    """Too many connections."""

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


@dataclass(slots=True)
class _Connection:
    address: str
    token_id: str | None = None
    """None before the login; empty if the server needs no token."""


class Admission:
    """Limits connections in total, per address and per token. A higher number means a newer connection.

    Use it in one event loop.
    """

    def __init__(self, connections_max: int, per_address_max: int, per_token_max: int) -> None:
        self._connections_max = connections_max
        self._per_address_max = per_address_max
        self._per_token_max = per_token_max
        self._connections: dict[int, _Connection] = {}

    def connect(self, number: int, address: str) -> int | None:
        """Admit a connection. If another connection must be dropped to make room, return that connection's number.

        Raise if the limit is reached and no connection can be dropped.
        """
        dropped = None
        if self._count(address) >= self._per_address_max:
            dropped = self._oldest_unauthenticated(address)
            if dropped is None:
                raise ConnectionRefused(
                    f"too many connections from {address} (limit {self._per_address_max})",
                    "close some connections, or raise serve.pg_connections_per_address",
                )
        elif len(self._connections) >= self._connections_max + _UNAUTHENTICATED_MAX:
            dropped = self._oldest_unauthenticated(self._busiest_address())
        if dropped is not None:
            del self._connections[dropped]
        self._connections[number] = _Connection(address)
        return dropped

    def log_in(self, number: int, token_id: str) -> None:
        connection = self._connections.get(number)
        if connection is None:
            # ``connect`` dropped the connection before its login arrived.
            raise ConnectionRefused(
                "the connection was dropped to make room for another", "reconnect in a moment"
            )
        token_ids = [
            connection.token_id
            for connection in self._connections.values()
            if connection.token_id is not None
        ]
        if len(token_ids) >= self._connections_max:
            raise ConnectionRefused(
                f"too many connections (limit {self._connections_max})",
                "close some connections, or raise serve.pg_connections",
            )
        if token_id and token_ids.count(token_id) >= self._per_token_max:
            raise ConnectionRefused(
                f"too many connections with this token (limit {self._per_token_max})",
                "close some connections, or raise serve.pg_connections_per_token",
            )
        connection.token_id = token_id

    def disconnect(self, number: int) -> None:
        self._connections.pop(number, None)

    def _count(self, address: str) -> int:
        return sum(connection.address == address for connection in self._connections.values())

    def _oldest_unauthenticated(self, address: str) -> int | None:
        unauthenticated = (
            number
            for number, connection in self._connections.items()
            if connection.address == address and connection.token_id is None
        )
        return next(unauthenticated, None)

    def _busiest_address(self) -> str:
        unauthenticated = Counter(
            connection.address for connection in self._connections.values() if connection.token_id is None
        )
        return unauthenticated.most_common(1)[0][0]
