"""Splits the bytes of a socket into frames, and decodes a frame into the request that a handler receives.

``Framing`` splits the stream into frames. Each connection has one small buffer for small frames. A larger frame gets
its own buffer, which the socket fills directly. That buffer grows only as bytes arrive, because a client can announce
a large frame and never send it. Only Produce requests need to be large. So the size limit depends on the API key, which
is in the first two bytes of the frame.
"""

from __future__ import annotations

import struct
from functools import cache
from typing import Any, NamedTuple

from headrace.broker.handlers import SUPPORTED_APIS
from headrace.broker.limits import BrokerLimits
from headrace.errors import HeadraceError
from headrace.wire import WireError, decode, decode_header, messages, versions
from headrace.wire.api import Api
from headrace.wire.frames import Header

__all__ = ["FrameTooLarge", "Framing", "Request", "decode_request"]


class Request(NamedTuple):
    """A decoded request. ``message`` is an instance of the request class of ``api``, with the fields of ``version``."""

    api: Api
    version: int
    correlation_id: int
    client_id: str | None
    message: Any
    client_host: str
    connection: object | None = None
    """Identifies the client's connection. Handlers use it only for comparison."""


def decode_request(
    frame: bytes | bytearray, client_host: str, limits: BrokerLimits, connection: object | None = None
) -> tuple[Header, Request | None]:
    """Return the header and the request. Raises ``WireError`` for an invalid or unsupported request.

    The request is ``None`` for ApiVersions in an unsupported version, because the broker responds to it.
    """
    header = decode_header(frame)
    api = header.api
    if api is None or api not in SUPPORTED_APIS:
        raise WireError(f"unsupported API key {header.api_key}")
    lowest, highest = versions(api)
    if not lowest <= header.version <= highest:
        if api is Api.API_VERSIONS:
            return header, None
        raise WireError(
            f"unsupported version {header.version} of {api.name}: this broker supports {lowest} to {highest}"
        )
    message = decode(
        _message_type(api), header.version, frame, header.body_start, elements_max=limits.elements_max[api]
    )
    return header, Request(
        api, header.version, header.correlation_id, header.client_id, message, client_host, connection
    )


@cache
def _message_type(api: Api) -> Any:
    return getattr(messages, f"{api.title}Request")


_SIZE = struct.Struct(">i")
_SMALL_BYTES = 8 * 1024
_FIRST_LARGE_BYTES = 64 * 1024
_PRODUCE = b"\0\0"


class FrameTooLarge(HeadraceError):
    code = "HR-WIRE-FRAME-SIZE"

    def __init__(self, size: int, size_max: int) -> None:
        super().__init__(
            f"invalid frame size {size} (limit {size_max} bytes)",
            hint="send smaller requests, and check that the client uses the Kafka protocol without TLS",
        )
        self.size = size


class Framing:
    def __init__(self, produce_bytes_max: int, other_bytes_max: int | None = None) -> None:
        self._max = produce_bytes_max
        self._other_max = produce_bytes_max if other_bytes_max is None else other_bytes_max
        self._small = bytearray(_SMALL_BYTES)
        self._start = 0
        self._end = 0
        self._large: bytearray | None = None
        self._large_size = 0
        self._filled = 0

    @property
    def is_inside_frame(self) -> bool:
        return self._large is not None or self._end > self._start

    @property
    def large_bytes(self) -> int:
        """The memory of the frame that is being received, without the small buffer of the connection."""
        return 0 if self._large is None else len(self._large)

    @property
    def bytes_received(self) -> int:
        """The bytes that have arrived of the frame that is being received."""
        return self._end - self._start if self._large is None else self._filled

    def room(self) -> memoryview:
        """Return the buffer for the next bytes from the socket."""
        if self._large is None:
            return memoryview(self._small)[self._end :]
        return memoryview(self._large)[self._filled :]

    def received(self, count: int) -> list[bytes | bytearray]:
        """Process ``count`` new bytes in ``room``. Returns the frames that are now complete."""
        if self._large is not None:
            self._filled += count
            return self._advance_large()
        self._end += count
        frames: list[bytes | bytearray] = []
        while self._end - self._start >= 4:
            (size,) = _SIZE.unpack_from(self._small, self._start)
            if not 0 <= size <= self._max:
                raise FrameTooLarge(size, self._max)
            first = self._start + 4
            if size > self._other_max:
                if self._end - first < 2:
                    break
                if self._small[first : first + 2] != _PRODUCE:
                    raise FrameTooLarge(size, self._other_max)
            if self._end - first >= size:
                frames.append(bytes(self._small[first : first + size]))
                self._start = first + size
                continue
            if size + 4 > _SMALL_BYTES:
                self._begin_large(size, first)
            break
        self._move_to_front()
        return frames

    def _begin_large(self, size: int, first: int) -> None:
        self._large = bytearray(min(size, _FIRST_LARGE_BYTES))
        self._large_size = size
        self._filled = self._end - first
        self._large[: self._filled] = self._small[first : self._end]
        self._start = self._end = 0

    def _advance_large(self) -> list[bytes | bytearray]:
        assert self._large is not None
        if self._filled == self._large_size:
            frame, self._large = self._large, None
            return [frame]
        if self._filled == len(self._large):
            # Create a new buffer, because the event loop still has a view of the old buffer.
            larger = bytearray(min(2 * self._filled, self._large_size))
            larger[: self._filled] = self._large
            self._large = larger
        return []

    def _move_to_front(self) -> None:
        """Move an incomplete frame to the front of the buffer, to make room for the rest of the frame."""
        if self._start == self._end:
            self._start = self._end = 0
        elif self._start:
            rest = self._small[self._start : self._end]
            self._small[: len(rest)] = rest
            self._start, self._end = 0, len(rest)
