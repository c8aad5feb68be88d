"""One connection to a broker, for requests and responses that the oracle encodes and decodes itself."""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable
from typing import TypeVar

from faults.protocol.codec import Reader, int16, int32, string

__all__ = ["Connection", "Gone"]

T = TypeVar("T")

_ANSWER_BYTES_MAX = 200 << 20
_FLEXIBLE_TAGS = b"\x00"


class Gone(Exception):
    """The broker closed the connection, refused it, or did not respond in time."""


class Connection:
    """Requests can be pipelined. Responses arrive in the order of the requests."""

    def __init__(
        self, port: int, *, client_id: str | bytes | None = "oracle", timeout_s: float = 10.0
    ) -> None:
        self._client_id = client_id
        self._correlation = 0
        try:
            self._socket = socket.create_connection(("127.0.0.1", port), timeout=timeout_s)
        except OSError as error:
            raise Gone(str(error)) from error
        try:
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except OSError as error:
            self._socket.close()
            raise Gone(str(error)) from error

    def __enter__(self) -> Connection:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def send(self, api: int, version: int, body: bytes, *, flexible: bool = False) -> int:
        self._correlation += 1
        head = int16(api) + int16(version) + int32(self._correlation) + string(self._client_id)
        if flexible:
            head += _FLEXIBLE_TAGS
        self.send_frame(head + body)
        return self._correlation

    def send_frame(self, frame: bytes) -> None:
        try:
            self._socket.sendall(struct.pack(">i", len(frame)) + frame)
        except OSError as error:
            raise Gone(str(error)) from error

    def receive(self) -> tuple[int, Reader]:
        """Return the correlation id and body of the next response."""
        size = struct.unpack(">i", self._read(4))[0]
        if not 4 <= size <= _ANSWER_BYTES_MAX:
            raise ValueError(f"the response claims {size} bytes")
        reader = Reader(self._read(size))
        return reader.int32(), reader

    def _read(self, size: int) -> bytes:
        buffer = bytearray(size)
        view = memoryview(buffer)
        at = 0
        try:
            while at < size:
                got = self._socket.recv_into(view[at:])
                if not got:
                    raise Gone("the broker closed the connection")
                at += got
        except OSError as error:
            raise Gone(str(error)) from error
        return bytes(buffer)

    def call(
        self, api: int, version: int, body: bytes, read: Callable[[Reader], T], *, flexible: bool = False
    ) -> T:
        """Send one request and decode its response with ``read``. ``flexible``: both have tagged fields."""
        sent = self.send(api, version, body, flexible=flexible)
        correlation, reader = self.receive()
        if correlation != sent:
            raise ValueError(f"received the response {correlation} instead of {sent}")
        if flexible:
            reader.skip_tags()
        return read(reader)

    def close(self) -> None:
        self._socket.close()
