"""Pings of a slow subscriber: the server answers the newest ping, and a close after it."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from typing import Any

import pytest
import uvicorn
from uvicorn.server import ServerState

from headrace.clock import SystemClock
from headrace.serve.http.connection import Gate
from headrace.serve.http.limits import Limits
from headrace.serve.http.request_log import RequestMetrics
from headrace.serve.subscribe.web_socket_connection import WebSocketConnection

_UPGRADE = (
    b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
)
_LARGE = b"x" * (1 << 20)
_LARGE_HEAD = b"\x82\x7f" + len(_LARGE).to_bytes(8, "big")
_TEXT, _CLOSE, _PING, _PONG = 0x81, 0x88, 0x89, 0x8A


def _client_frame(opcode: int, payload: bytes) -> bytes:
    """Return a client's frame, with a mask of zeros."""
    return bytes([opcode, 0x80 | len(payload)]) + bytes(4) + payload


def _server_frame(opcode: int, payload: bytes) -> bytes:
    return bytes([opcode, len(payload)]) + payload


class _Subscribed:
    """A client that has not yet read anything of a large message."""

    def __init__(
        self, client: socket.socket, served: WebSocketConnection, messages: asyncio.Queue[Any]
    ) -> None:
        self._client = client
        self.served = served
        self._messages = messages

    async def send(self, data: bytes) -> None:
        await asyncio.get_running_loop().sock_sendall(self._client, data)

    async def send_and_wait_until_read(self, data: bytes) -> None:
        await self.send(data + _client_frame(_TEXT, b"all before this was read"))
        assert (await self._messages.get())["type"] == "websocket.receive"

    async def read(self, size: int) -> bytes:
        """Read this many bytes; fewer only if the server has closed the connection."""
        data = b""
        async with asyncio.timeout(10):
            while len(data) < size:
                chunk = await asyncio.get_running_loop().sock_recv(self._client, size - len(data))
                if not chunk:
                    break
                data += chunk
        return data

    async def read_large(self) -> None:
        assert await self.read(len(_LARGE_HEAD)) == _LARGE_HEAD
        assert await self.read(len(_LARGE)) == _LARGE


@contextlib.asynccontextmanager
async def _subscribed() -> AsyncIterator[_Subscribed]:
    messages: asyncio.Queue[Any] = asyncio.Queue()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        assert (await receive())["type"] == "websocket.connect"
        await send({"type": "websocket.accept"})
        await send({"type": "websocket.send", "bytes": _LARGE})
        while True:
            message = await receive()
            messages.put_nowait(message)
            if message["type"] == "websocket.disconnect":
                return

    loop = asyncio.get_running_loop()
    gate = Gate(Limits(), RequestMetrics(), SystemClock())
    config = uvicorn.Config(app, lifespan="off", log_config=None, ws_ping_interval=None)
    config.load()
    state, accepted = ServerState(), []

    def connect() -> WebSocketConnection:
        accepted.append(WebSocketConnection(gate, config=config, server_state=state, app_state={}))
        return accepted[0]

    server = await loop.create_server(connect, "127.0.0.1", 0)
    try:
        with socket.socket() as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65_536)
            client.setblocking(False)
            await loop.sock_connect(client, server.sockets[0].getsockname())
            await loop.sock_sendall(client, _UPGRADE)
            head = b""
            while not head.endswith(b"\r\n\r\n"):
                head += await loop.sock_recv(client, 1)
            while not accepted or accepted[0].writable.is_set():
                await asyncio.sleep(0.001)
            yield _Subscribed(client, accepted[0], messages)
    finally:
        server.close()
        await asyncio.gather(*state.tasks)


async def test_only_the_newest_ping_of_a_slow_subscriber_is_answered() -> None:
    async with _subscribed() as subscriber:
        await subscriber.send_and_wait_until_read(_client_frame(_PING, b"1") + _client_frame(_PING, b"2"))
        await subscriber.send_and_wait_until_read(_client_frame(_PING, b"3"))
        assert not subscriber.served.writable.is_set()
        await subscriber.read_large()
        assert await subscriber.read(3) == _server_frame(_PONG, b"3")
        # A delayed pong is written once.
        await subscriber.send(_client_frame(_PING, b"4"))
        assert await subscriber.read(3) == _server_frame(_PONG, b"4")


@pytest.mark.parametrize(
    "before", [b"", _client_frame(_PING, b"1")], ids=["no pong is kept", "a pong is kept"]
)
async def test_a_close_after_a_ping_is_answered_and_ends_the_stream(before: bytes) -> None:
    code = (1_000).to_bytes(2, "big")
    async with _subscribed() as subscriber:
        if before:
            await subscriber.send_and_wait_until_read(before)
        await subscriber.send(_client_frame(_PING, b"2") + _client_frame(_CLOSE, code))
        while not subscriber.served.transport.is_closing():
            await asyncio.sleep(0.001)
        await subscriber.read_large()
        assert await subscriber.read(100) == _server_frame(_CLOSE, code)
