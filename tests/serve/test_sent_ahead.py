"""What a caller sends ahead of the answers to it: little of it is held, and all of it is answered in its order."""

from __future__ import annotations

import gc
import re
import socket
from collections.abc import Iterator
from typing import TypeVar

import pytest
from uvicorn.protocols.utils import get_remote_addr

from headrace.client.cluster import Cluster
from headrace.serve.connection import Connection
from headrace.serve.subscriptions.socket_connection import SocketConnection
from tests.serve.http import Http
from tests.serve.serving import served
from tests.serve.shop import shop
from tests.support.waiting import until

T = TypeVar("T", Connection, SocketConnection)

_HEALTH = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
_LAST = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
_SENT_BYTES = 4 << 20


@pytest.fixture(scope="module")
def http(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Http]:
    with served(shop("ahead"), cluster, tmp_path_factory.mktemp("ahead")) as made:
        yield made


def _narrow(http: Http) -> socket.socket:
    made = socket.socket()
    made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
    made.settimeout(30)
    made.connect(("127.0.0.1", http.port))
    return made


def _served_side(kind: type[T], client: socket.socket) -> T:
    """The server is in this process."""
    (found,) = [
        one
        for one in gc.get_objects()
        if type(one) is kind and get_remote_addr(one.transport) == client.getsockname()
    ]
    return found


def test_of_requests_that_are_sent_ahead_a_connection_takes_few(http: Http) -> None:
    with _narrow(http) as client:
        # An answer that goes on holds up all that come behind it.
        client.sendall(b"GET /v1/app/now/stream HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert client.recv(12) == b"HTTP/1.1 200"
        client.sendall(_HEALTH * 2_000)
        connection = _served_side(Connection, client)
        until(lambda: len(connection.pipeline) > 0, "a request that waits")
        client.sendall(_HEALTH * 2_000)
        until(lambda: connection.flow.read_paused, "no more to be read")
        assert len(connection.pipeline) < 60


def test_requests_that_are_sent_ahead_are_all_answered_in_their_order(http: Http) -> None:
    asked = [f"/v1/views/none{number}" for number in range(700)]
    heads = [f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode() for path in asked]
    body = b"POST /v1/sql HTTP/1.1\r\nHost: localhost\r\nContent-Length: 3000\r\n\r\n" + b"x" * 3_000
    heads[350] = body
    answered = b""
    with socket.create_connection(("127.0.0.1", http.port), 60) as client:
        client.sendall(b"".join(heads) + _LAST)
        while piece := client.recv(65_536):
            answered += piece
    statuses = re.findall(rb"HTTP/1\.1 (\d+) ", answered)
    assert statuses == [b"404"] * 350 + [b"415"] + [b"404"] * 349 + [b"200"]
    named = [int(number) for number in re.findall(rb"there is no view 'none(\d+)'", answered)]
    assert named == [number for number in range(700) if number != 350]


def test_pings_of_a_subscriber_that_does_not_read_are_not_answered_without_end(http: Http) -> None:
    view = http.get("/v1/views").expect(200)["views"][0]
    ping = b"\x89\xfd" + bytes(4) + bytes(125)
    with _narrow(http) as client:
        client.sendall(
            f"GET /v1/views/{view['view']}/changes HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\n"
            "Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
            "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n".encode()
        )
        assert client.recv(12) == b"HTTP/1.1 101"
        connection = _served_side(SocketConnection, client)
        for _ in range(_SENT_BYTES // (500 * len(ping))):
            client.sendall(ping * 500)
        assert connection.unsent_bytes() < 300_000
