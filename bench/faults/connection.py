"""One connection to a broker, for requests that the oracle writes itself and answers that it reads itself."""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable
from typing import TypeVar

from bench.faults.codec import Reader, int16, int32, string

__all__ = ["Connection", "Gone"]

T = TypeVar("T")

_ANSWER_BYTES_MAX = 200 << 20
_FLEXIBLE_TAGS = b"\x00"


class Gone(Exception):
    """The broker hung up, was not there, or did not answer in time."""


class Connection:
    """Requests may be sent ahead; answers come in the order of the requests."""

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
        """Correlation id and body of the next answer."""
        size = struct.unpack(">i", self._read(4))[0]
        if not 4 <= size <= _ANSWER_BYTES_MAX:
            raise ValueError(f"an answer of {size} bytes")
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

    def ask(
        self, api: int, version: int, body: bytes, read: Callable[[Reader], T], *, flexible: bool = False
    ) -> T:
        """One request and its answer, read by ``read``. ``flexible``: header and answer carry tagged fields."""
        sent = self.send(api, version, body, flexible=flexible)
        correlation, reader = self.receive()
        if correlation != sent:
            raise ValueError(f"answer {correlation} came where {sent} was due")
        if flexible:
            reader.skip_tags()
        return read(reader)

    def close(self) -> None:
        self._socket.close()
