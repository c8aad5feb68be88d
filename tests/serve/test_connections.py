"""Connections over HTTP: TCP options, pipelined requests, and a connection that is paused."""

from __future__ import annotations

import asyncio
import gc
import re
import socket
from collections.abc import Iterator
from typing import Any, TypeVar

import pytest
import uvicorn
from uvicorn.protocols.utils import get_remote_addr
from uvicorn.server import ServerState

from faults.serve.http import Http
from faults.serve.local_server import served
from faults.serve.shop_app import shop
from faults.wait import until
from headrace.client.cluster import Cluster
from headrace.clock import SystemClock
from headrace.serve.http.connection import _PIPELINED_MAX, Connection, Gate
from headrace.serve.http.limits import Limits
from headrace.serve.http.request_log import RequestMetrics
from headrace.serve.http.server import _bind
from headrace.serve.subscribe.web_socket_connection import WebSocketConnection

T = TypeVar("T", Connection, WebSocketConnection)

_HEALTH = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
_LAST = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
_SENT_BYTES = 4 << 20


@pytest.fixture(scope="module")
def http(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Http]:
    with served(shop("ahead"), cluster, tmp_path_factory.mktemp("ahead")) as client:
        yield client


def _connect_with_small_buffer(http: Http) -> socket.socket:
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
    client.settimeout(30)
    client.connect(("127.0.0.1", http.port))
    return client


def _server_end(kind: type[T], client: socket.socket) -> T:
    """Return the server's end of the connection. The server runs in this process."""
    (connection,) = [
        candidate
        for candidate in gc.get_objects()
        if type(candidate) is kind and get_remote_addr(candidate.transport) == client.getsockname()
    ]
    return connection


def test_a_connection_buffers_few_pipelined_requests(http: Http) -> None:
    with _connect_with_small_buffer(http) as client:
        # A streaming response delays all requests after it.
        client.sendall(b"GET /v1/app/now/stream HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert client.recv(12) == b"HTTP/1.1 200"
        client.sendall(_HEALTH * 2_000)
        connection = _server_end(Connection, client)
        until(lambda: len(connection.pipeline) > 0, "a waiting request")
        client.sendall(_HEALTH * 2_000)
        until(lambda: connection.flow.read_paused, "the connection to be paused")
        assert len(connection.pipeline) < 60


def test_pipelined_requests_are_all_answered_in_order(http: Http) -> None:
    requests = [f"/v1/views/none{number}" for number in range(700)]
    heads = [f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode() for path in requests]
    body = b"POST /v1/sql HTTP/1.1\r\nHost: localhost\r\nContent-Length: 3000\r\n\r\n" + b"x" * 3_000
    heads[350] = body
    responses = b""
    with socket.create_connection(("127.0.0.1", http.port), 60) as client:
        client.sendall(b"".join(heads) + _LAST)
        while chunk := client.recv(65_536):
            responses += chunk
    statuses = re.findall(rb"HTTP/1\.1 (\d+) ", responses)
    assert statuses == [b"404"] * 350 + [b"415"] + [b"404"] * 349 + [b"200"]
    view_numbers = [int(number) for number in re.findall(rb"view 'none(\d+)'", responses)]
    assert view_numbers == [number for number in range(700) if number != 350]


def test_pongs_to_a_subscriber_that_does_not_read_are_bounded(http: Http) -> None:
    view = http.get("/v1/views").expect(200)["views"][0]
    ping = b"\x89\xfd" + bytes(4) + bytes(125)
    with _connect_with_small_buffer(http) as client:
        client.sendall(
            f"GET /v1/views/{view['view']}/changes HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\n"
            "Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
            "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n".encode()
        )
        assert client.recv(12) == b"HTTP/1.1 101"
        connection = _server_end(WebSocketConnection, client)
        for _ in range(_SENT_BYTES // (500 * len(ping))):
            client.sendall(ping * 500)
        assert connection.unsent_bytes() < 300_000


def _request(number: int) -> bytes:
    return f"GET /{number} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()


class _LateBytes(Connection):
    """Receives more bytes after a response has freed the pipeline, but before the next turn of the event loop."""

    late = b""

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self._unparsed and len(self.pipeline) < _PIPELINED_MAX:
            late, self.late = self.late, b""
            self.data_received(late)


async def test_a_paused_connection_handles_bytes_that_arrive_before_it_resumes() -> None:
    released = asyncio.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await released.wait()
        path = scope["path"].encode()
        headers = [(b"content-length", str(len(path)).encode())]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": path})

    loop = asyncio.get_running_loop()
    config = uvicorn.Config(app, lifespan="off", log_config=None, access_log=False)
    config.load()
    gate, state, accepted = Gate(Limits(), RequestMetrics(), SystemClock()), ServerState(), []

    def connect() -> Connection:
        accepted.append(_LateBytes(gate, config=config, server_state=state, app_state={}))
        return accepted[0]

    server = await loop.create_server(connect, "127.0.0.1", 0)
    reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
    answered: list[int] = []

    async def read_until(count: int) -> None:
        async with asyncio.timeout(10):
            while len(answered) < count:
                head = await reader.readuntil(b"\r\n\r\n")
                (length,) = re.findall(rb"content-length: (\d+)", head)
                answered.append(int((await reader.readexactly(int(length)))[1:]))

    try:
        writer.write(b"".join(map(_request, range(40))))
        while not accepted or not accepted[0].flow.read_paused:
            await asyncio.sleep(0.001)
        accepted[0].late = b"".join(map(_request, range(40, 45)))
        released.set()
        await read_until(45)
        writer.write(_request(45))
        await read_until(46)
    finally:
        writer.close()
        server.close()
        await writer.wait_closed()
    assert answered == [*range(46)]
    assert accepted[0].late == b""


async def test_accepted_connections_have_tcp_nodelay() -> None:
    """Without TCP_NODELAY, the body of a response waits until its head is acknowledged."""
    accepted: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    def take(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = writer.get_extra_info("socket")
        accepted.set_result(connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
        writer.close()

    listening = _bind("127.0.0.1", 0)
    async with await asyncio.start_server(take, sock=listening):
        _, writer = await asyncio.open_connection(*listening.getsockname())
        assert await accepted
        writer.close()
        await writer.wait_closed()
