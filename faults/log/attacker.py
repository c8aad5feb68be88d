"""A client that sends small requests with large effects. It counts the bytes in both directions."""

from __future__ import annotations

import random
import socket
import struct
from typing import Any

from faults.protocol.connection import Gone
from headrace.wire import Api, decode_response, encode_request, versions

__all__ = ["ALLOWED_BYTES", "Amplified", "Attacker"]

ALLOWED_BYTES = 64 << 20


class Amplified(Exception):
    """A response is larger than its request by more than allowed."""


class Attacker:
    """All connections stay open until the attacker is closed, so that a test can measure what the broker holds for open
    connections.
    """

    def __init__(self, port: int, rng: random.Random, *, timeout_s: float = 60.0) -> None:
        self.rng = rng
        self.sent_bytes = 0
        self.answered_bytes = 0
        self.requests = 0
        self._port = port
        self._timeout_s = timeout_s
        self._sockets: list[socket.socket] = []

    def __enter__(self) -> Attacker:
        return self

    def __exit__(self, *_: object) -> None:
        for connection in self._sockets:
            connection.close()

    def connect(self) -> socket.socket:
        try:
            connection = socket.create_connection(("127.0.0.1", self._port), timeout=self._timeout_s)
        except OSError as error:
            raise Gone(str(error)) from error
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._sockets.append(connection)
        return connection

    @property
    def connection(self) -> socket.socket:
        """The shared connection, for requests that do not need their own."""
        return self._sockets[0] if self._sockets else self.connect()

    def call(
        self,
        api: Api,
        message: Any,
        version: int | None = None,
        *,
        client_id: str | None = "attacker",
        connection: socket.socket | None = None,
    ) -> Any:
        """Send a request and decode its response. Raises ``Amplified``, or ``Gone`` if the connection closes."""
        version = versions(api)[1] if version is None else version
        connection = connection or self.connection
        size = self.send(api, message, version, client_id=client_id, connection=connection)
        return decode_response(api, version, self._receive(connection, api, size), elements_max=10**8)[1]

    def call_from_many(self, api: Api, message: Any, version: int, connections: int) -> None:
        """Send the same request on many new connections, then read all responses."""
        opened = [self.connect() for _ in range(connections)]
        sizes = [self.send(api, message, version, connection=connection) for connection in opened]
        for connection, size in zip(opened, sizes, strict=True):
            self._receive(connection, api, size)

    def send(
        self,
        api: Api,
        message: Any,
        version: int,
        *,
        client_id: str | None = "attacker",
        connection: socket.socket,
    ) -> int:
        """Send a request and return its size."""
        frame = encode_request(api, version, 1, client_id, message)
        self.sent_bytes += len(frame)
        self.requests += 1
        try:
            connection.sendall(frame)
        except OSError as error:
            raise Gone(f"{api.name}: {error}") from error
        return len(frame)

    def _receive(self, connection: socket.socket, api: Api, sent: int) -> bytes:
        (size,) = struct.unpack(">i", _read(connection, 4, api))
        self.answered_bytes += size
        if size > sent + ALLOWED_BYTES:
            raise Amplified(f"{sent} bytes of {api.name} got a response of {size} bytes")
        return _read(connection, size, api)


def _read(connection: socket.socket, size: int, api: Api) -> bytes:
    buffer = bytearray(size)
    view = memoryview(buffer)
    at = 0
    try:
        while at < size:
            got = connection.recv_into(view[at:])
            if not got:
                raise Gone(f"the broker closed the connection on {api.name}")
            at += got
    except OSError as error:
        raise Gone(f"{api.name}: {error}") from error
    return bytes(buffer)
