"""From the bytes of a socket to the request that a handler receives, and from its response to bytes.

``Framing`` splits the stream into frames. Each connection has one small buffer for small frames. A larger frame gets
its own buffer, which the socket fills directly. That buffer grows only as bytes arrive, because a client can announce
a large frame and never send it. Only Produce requests need to be large. So the size limit depends on the API key, which
is in the first two bytes of the frame.

A response with many items takes long to build and to encode. Its task takes a turn (``Turns``) and keeps it until the
response is encoded. So the event loop serves other clients in between, and only one such response at a time is in
memory before it is encoded. A response that was built without a turn waits for one, and its memory counts meanwhile.
"""

from __future__ import annotations

import struct
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

from headrace.broker.handlers import HANDLERS, SUPPORTED_APIS
from headrace.broker.limits import BrokerLimits
from headrace.broker.net.responses import ITEM_BYTES, count_items, has_many_items
from headrace.errors import HeadraceError
from headrace.wire import WireError, decode, decode_header, messages, versions
from headrace.wire.api import Api
from headrace.wire.frames import Header, encode_response_parts

if TYPE_CHECKING:
    from headrace.broker.broker import Broker
    from headrace.broker.net.connection import Connection

__all__ = [
    "Frame",
    "FrameTooLarge",
    "Framing",
    "Parts",
    "PendingResponse",
    "Request",
    "decode_body",
    "decode_head",
    "decode_large_body",
    "join_small",
]

Frame = bytes | bytearray


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


def decode_head(frame: Frame) -> tuple[Header, bool]:
    """Return the header of a request, and whether the broker supports its version.

    Raises ``WireError`` for an unsupported request, except for ApiVersions, because the broker responds to it in any
    version.
    """
    header = decode_header(frame)
    api = header.api
    if api is None or api not in SUPPORTED_APIS:
        raise WireError(f"unsupported API key {header.api_key}")
    lowest, highest = versions(api)
    is_supported = lowest <= header.version <= highest
    if not is_supported and api is not Api.API_VERSIONS:
        raise WireError(
            f"unsupported version {header.version} of {api.name}: this broker supports {lowest} to {highest}"
        )
    return header, is_supported


def decode_body(
    header: Header,
    frame: Frame,
    limits: BrokerLimits,
    connection: Connection,
) -> Request:
    """Return the request in a frame with a supported ``header``. Raises ``WireError`` if it is invalid."""
    api = header.api
    assert api is not None
    message = decode(
        _message_type(api), header.version, frame, header.body_start, elements_max=limits.elements_max[api]
    )
    return Request(
        api, header.version, header.correlation_id, header.client_id, message, connection.peer, connection
    )


def decode_large_body(
    header: Header, frame: Frame, limits: BrokerLimits, connection: Connection
) -> tuple[Request, int]:
    """Like ``decode_body``. Also returns the memory to count for the request while it is handled. Runs in a thread.

    A fetch reserves its memory itself, and does not keep its request.
    """
    request = decode_body(header, frame, limits, connection)
    is_fetch = header.api is Api.FETCH
    return request, 0 if is_fetch else len(frame) + count_items(request.message) * ITEM_BYTES


@cache
def _message_type(api: Api) -> Any:
    return getattr(messages, f"{api.title}Request")


Parts = list[bytearray | memoryview]


class PendingResponse:
    """A response in the queue of its connection.

    ``parts`` are its bytes, or ``None`` until it is encoded. ``received`` is the time at which its request arrived.
    While the response waits to be encoded, it counts in the account of responses.
    """

    __slots__ = ("_connection", "api", "broker", "correlation_id", "parts", "received", "version")

    def __init__(self, broker: Broker, header: Header, received: float, connection: Connection) -> None:
        assert header.api is not None
        self._connection = connection
        self.broker = broker
        self.api = header.api
        self.version = header.version
        self.received = received
        self.correlation_id = header.correlation_id
        self.parts: Parts | None = None

    async def handle(self, request: Request) -> Parts:
        """Handle a request, except Produce and Fetch, and return the encoded response."""
        try:
            return await self.encode_any(await HANDLERS[request.api](self.broker, request))
        finally:
            # The handler can have taken a turn.
            self.broker.turns.give_back()

    def encode(self, response: Any) -> Parts:
        self._count(response)
        return encode_response_parts(self.api, self.version, self.correlation_id, response)

    async def encode_any(self, response: Any, records_bytes: int = 0) -> Parts:
        """Encode a response of any size. A thread encodes a large one, so that other clients do not wait for it.

        A response with many items gives back the turn of the caller. If the caller has none, the response takes a turn,
        and its memory counts while it waits. ``records_bytes`` is the size of its records.
        """
        if not has_many_items(response):
            return self.encode(response)
        broker = self.broker
        if not broker.turns.is_held_by_me():
            size = count_items(response) * ITEM_BYTES + records_bytes
            broker.responses_held.set_usage(self, size)
        try:
            async with broker.turns:
                self._count(response)
                return await broker.loop.run_in_executor(
                    broker.codec_executor,
                    encode_response_parts,
                    self.api,
                    self.version,
                    self.correlation_id,
                    response,
                )
        finally:
            broker.responses_held.set_usage(self, 0)

    def evict(self, reason: str) -> None:
        """Close the connection, because all responses together use too much memory."""
        self._connection.evict(reason)

    def _count(self, response: Any) -> None:
        stats = self.broker.stats
        stats.responded(self.api, self.broker.clock.steady() - self.received)
        if self.api is Api.FETCH:
            stats.fetched(response, self.broker.topic_name)


def join_small(parts: Parts, bytes_max: int) -> Parts:
    """Join consecutive small parts up to ``bytes_max``, because sending costs more than copying a few kilobytes."""
    joined: Parts = []
    small: Parts = []
    small_bytes = 0
    for part in parts:
        if small and small_bytes + len(part) > bytes_max:
            joined.append(small[0] if len(small) == 1 else bytearray().join(small))
            small, small_bytes = [], 0
        small.append(part)
        small_bytes += len(part)
    if small:
        joined.append(small[0] if len(small) == 1 else bytearray().join(small))
    return joined


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

    def received(self, count: int) -> list[Frame]:
        """Process ``count`` new bytes in ``room``. Returns the frames that are now complete."""
        if self._large is not None:
            self._filled += count
            return self._advance_large()
        self._end += count
        frames: list[Frame] = []
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

    def _advance_large(self) -> list[Frame]:
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
