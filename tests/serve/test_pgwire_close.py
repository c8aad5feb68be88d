"""Closing a connection of PostgreSQL's protocol whose client does not read."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from headrace.serve.http.limits import Limits
from headrace.serve.sql.wire import listener as listening
from headrace.serve.sql.wire.context import WireMetrics
from headrace.serve.sql.wire.listener import Listener


class _UnsentAccount:
    """An account that only records the maximum number of unsent bytes of a connection."""

    max_bytes = 0

    def set_usage(self, holder: object, size: int) -> None:
        self.max_bytes = max(self.max_bytes, size)


class _Session:
    """Sends until the client's buffers are full and some bytes remain unsent, then ends."""

    def __init__(self, served: Any, channel: Any, *_: Any, **__: Any) -> None:
        self._served = served
        self._channel = channel

    async def run(self) -> None:
        connection = self._channel._writer.get_extra_info("socket")
        self._served.silent_ms = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT)
        while not self._served.unsent.max_bytes:
            await self._channel.send(b"x" * 4_096)
        self._served.ended.set()


@contextlib.asynccontextmanager
async def _ended_session(
    monkeypatch: pytest.MonkeyPatch, send_s: float
) -> AsyncIterator[tuple[Listener, Any, socket.socket]]:
    """Yield a listener, and a client whose session has ended before the client read anything."""
    monkeypatch.setattr(listening, "Session", _Session)
    faults: list[BaseException] = []
    served: Any = SimpleNamespace(
        serve=SimpleNamespace(limits=Limits(send_s=send_s)),
        metrics=WireMetrics(),
        unsent=_UnsentAccount(),
        report=faults.append,
        ended=asyncio.Event(),
    )
    listener = Listener(served)
    with socket.socket() as bound, socket.socket() as client:
        bound.bind(("127.0.0.1", 0))
        bound.setblocking(False)
        await listener.start(bound)
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        client.setblocking(False)
        await asyncio.get_running_loop().sock_connect(client, bound.getsockname())
        await served.ended.wait()
        yield listener, served, client
        await listener.close()
    assert faults == []


def _served_sockets(client: socket.socket) -> int:
    """Count the server's sockets of this client. The server runs in this process."""
    own = client.getsockname()
    return sum(net_connection.raddr == own for net_connection in psutil.Process().net_connections("tcp"))


async def test_a_client_that_does_not_read_keeps_its_slot_until_its_socket_is_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with _ended_session(monkeypatch, send_s=0.3) as (_, served, client):
        await asyncio.sleep(0)
        assert (served.metrics.connections, _served_sockets(client)) == (1, 1)
        async with asyncio.timeout(10):
            while _served_sockets(client):
                await asyncio.sleep(0.01)
        assert served.metrics.connections == 0


async def test_a_client_that_keeps_reading_gets_all_bytes_sent_before_the_close(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with _ended_session(monkeypatch, send_s=30) as (_, _, client):
        size = 0
        while chunk := await asyncio.get_running_loop().sock_recv(client, 65_536):
            size += len(chunk)
        assert size % 4_096 == 0


async def test_a_stop_does_not_wait_for_a_client_that_does_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    async with _ended_session(monkeypatch, send_s=3_600) as (listener, served, client):
        async with asyncio.timeout(10):
            await listener.close()
        assert (served.metrics.connections, _served_sockets(client)) == (0, 0)


async def test_the_kernel_closes_a_connection_without_acknowledgements_after_a_minute(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with _ended_session(monkeypatch, send_s=0.1) as (_, served, _):
        assert served.silent_ms == 60_000
