"""Who listens for PostgreSQL's protocol, in the server's event loop: connections come, are counted, and go."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING

from headrace.serve.pgwire import frames
from headrace.serve.pgwire.admission import Admission, Refused
from headrace.serve.pgwire.channel import Channel, Ended
from headrace.serve.pgwire.kept import Kept
from headrace.serve.pgwire.session import Session
from headrace.serve.silence import limit_silence
from headrace.serve.tokens import Caller

if TYPE_CHECKING:
    from headrace.serve.served import Served

__all__ = ["Listener"]

_BUFFER_BYTES = 64 * 1024
_KEPT_COUNT_MAX = 400
_KEEPALIVE = (("TCP_KEEPIDLE", 60), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 6))


class Listener:
    def __init__(self, served: Served, anybody: Caller, report: Callable[[BaseException], None]) -> None:
        self._served = served
        self._anybody = anybody
        self._report = report
        self._sessions: dict[int, Session] = {}
        limits = served.limits
        self._admission = Admission(
            limits.pg_connections_max, limits.pg_per_address_max, limits.pg_per_token_max
        )
        self._tasks: set[asyncio.Task[None]] = set()
        self._numbers = itertools.count(1)
        self._server: asyncio.Server | None = None

    async def start(self, bound: socket.socket) -> None:
        self._server = await asyncio.start_server(self._came, sock=bound, limit=_BUFFER_BYTES)

    async def _came(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        counts, limits = self._served.wire, self._served.limits
        counts.came += 1
        counts.connections += 1
        number = next(self._numbers) % 2**31
        try:
            _keep_alive(writer)
            limit_silence(writer.transport)
            channel = Channel(reader, writer, limits, self._served.unsent, counts.note_evicted)
            try:
                dropped = self._admission.connect(number, channel.peer)
            except Refused as refused:
                counts.ended["full"] += 1
                writer.write(_told(refused))
                return
            if dropped is not None:
                counts.ended["made room"] += 1
                self._sessions[dropped].drop()
            session = Session(
                self._served,
                channel,
                number,
                Kept(counts.kept, 2 * limits.answer_bytes_max, _KEPT_COUNT_MAX),
                anybody=self._anybody,
                cancel=self._cancel,
                enter=lambda caller: self._enter(number, caller),
                report=self._report,
            )
            self._sessions[number] = session
            await session.run()
        except ConnectionError:
            pass
        except asyncio.CancelledError:
            writer.transport.abort()
        except Exception as error:
            self._report(error)
        finally:
            # Its place is taken until the socket is closed: otherwise sockets that nobody reads would be unbounded.
            try:
                await _close(writer, limits.send_s)
            finally:
                counts.connections -= 1
                self._sessions.pop(number, None)
                self._admission.disconnect(number)
                self._tasks.discard(task)

    def _enter(self, number: int, caller: Caller) -> None:
        try:
            self._admission.log_in(number, caller.token_id)
        except Refused as refused:
            raise Ended("full", _told(refused)) from None

    def _cancel(self, number: int, secret: int) -> None:
        """Only who knows the secret; nobody is told whether it was right."""
        self._served.wire.cancels += 1
        session = self._sessions.get(number)
        if session is not None and session.secret == secret:
            session.cancel()

    async def drain(self, time_s: float) -> None:
        """No new connections; those that are there go when what they asked is answered."""
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


def _told(refused: Refused) -> bytes:
    return frames.error("53300", refused.message, hint=refused.hint, fatal=True)


async def _close(writer: asyncio.StreamWriter, time_s: float) -> None:
    """Close the socket, and abort it where the client does not take the rest in time."""
    try:
        async with asyncio.timeout(time_s):
            writer.close()
            await writer.wait_closed()
    except (OSError, asyncio.CancelledError):
        writer.transport.abort()


def _keep_alive(writer: asyncio.StreamWriter) -> None:
    """Who is gone without a word, with its machine or its network, is found out, and makes room."""
    found = writer.get_extra_info("socket")
    with contextlib.suppress(OSError):
        found.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in _KEEPALIVE:
            if hasattr(socket, name):
                found.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
