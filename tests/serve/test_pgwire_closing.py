"""The end of a connection in PostgreSQL's protocol whose client does not read what was sent to it."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from headrace.serve.limits import Limits
from headrace.serve.pgwire import listener as listening
from headrace.serve.pgwire.counts import WireCounts
from headrace.serve.pgwire.listener import Listener


class _Unsent:
    """An account that only notes the most that a connection held."""

    most = 0

    def hold(self, holder: object, size: int) -> None:
        self.most = max(self.most, size)


class _Session:
    """Sends until the client's buffers are full and some is left, and ends."""

    def __init__(self, served: Any, channel: Any, *_: Any, **__: Any) -> None:
        self._served = served
        self._channel = channel

    async def run(self) -> None:
        made = self._channel._writer.get_extra_info("socket")
        self._served.silent_ms = made.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT)
        while not self._served.unsent.most:
            await self._channel.send(b"x" * 4_096)
        self._served.ended.set()


@contextlib.asynccontextmanager
async def _ended(
    monkeypatch: pytest.MonkeyPatch, send_s: float
) -> AsyncIterator[tuple[Listener, Any, socket.socket]]:
    """A listener, and a client whose session has ended before it read anything."""
    monkeypatch.setattr(listening, "Session", _Session)
    served: Any = SimpleNamespace(
        limits=Limits(send_s=send_s), wire=WireCounts(), unsent=_Unsent(), ended=asyncio.Event()
    )
    faults: list[BaseException] = []
    listener = Listener(served, SimpleNamespace(), faults.append)  # type: ignore[arg-type]
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
    """The server is in this process."""
    own = client.getsockname()
    return sum(one.raddr == own for one in psutil.Process().net_connections("tcp"))


async def test_a_client_that_does_not_read_keeps_its_place_until_its_socket_is_closed_in_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with _ended(monkeypatch, send_s=0.3) as (_, served, client):
        await asyncio.sleep(0)
        assert (served.wire.connections, _served_sockets(client)) == (1, 1)
        async with asyncio.timeout(10):
            while _served_sockets(client):
                await asyncio.sleep(0.01)
        assert served.wire.connections == 0


async def test_a_client_that_reads_on_gets_all_that_was_sent_before_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with _ended(monkeypatch, send_s=30) as (_, _, client):
        size = 0
        while piece := await asyncio.get_running_loop().sock_recv(client, 65_536):
            size += len(piece)
        assert size % 4_096 == 0


async def test_a_stop_waits_for_no_client_that_does_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    async with _ended(monkeypatch, send_s=3_600) as (listener, served, client):
        async with asyncio.timeout(10):
            await listener.close()
        assert (served.wire.connections, _served_sockets(client)) == (0, 0)


async def test_the_kernel_closes_a_connection_whose_client_acknowledges_nothing_for_a_minute(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with _ended(monkeypatch, send_s=0.1) as (_, served, _):
        assert served.silent_ms == 60_000
