"""Frames: what travels between client and broker, a header and a message.

    request     size int32 | api int16 | version int16 | correlation int32 | client id | tags | message
    response    size int32 | correlation int32 | tags | message

Tags are there from the API's first flexible version on. The client id keeps its 16-bit length throughout,
because a broker must be able to read the header of a version that it does not know. For the same reason
the response to ApiVersions never has tags: a client reads it before it knows what the broker speaks.

Frames are read without their size, which is the transport's affair, and written with it.
"""

from __future__ import annotations

import struct as layouts
from functools import cache
from typing import TYPE_CHECKING, NamedTuple

from headrace.wire import messages
from headrace.wire.api import Api, flexible_from
from headrace.wire.codec import decode, write
from headrace.wire.compiled import Buffer
from headrace.wire.errors import WireError
from headrace.wire.fetch import response_parts
from headrace.wire.reading import read_uvarint

if TYPE_CHECKING:
    from headrace.wire.message import Message

__all__ = [
    "Header",
    "decode_header",
    "decode_request",
    "decode_response",
    "encode_request",
    "encode_response",
    "encode_response_parts",
    "request_class",
    "response_class",
]

# Tagged fields in a header, where none are defined as yet.
TAGS_MAX = 100

# A client knows the broker that it asks, and the metadata of a large cluster has many elements.
RESPONSE_ELEMENTS_MAX = 2_000_000

_APIS: dict[int, Api] = {int(api): api for api in Api}
_REQUEST = layouts.Struct(">hhih")
_RESPONSE = layouts.Struct(">ii")
_INT32 = layouts.Struct(">i")


class Header(NamedTuple):
    """A request's header. ``api`` is None for a number that we have no messages of."""

    api: Api | None
    api_key: int
    version: int
    correlation_id: int
    client_id: str | None
    body_start: int


def decode_header(frame: Buffer) -> Header:
    """Reads a request's header, also of APIs and versions that we do not know."""
    try:
        api_key, version, correlation_id, size = _REQUEST.unpack_from(frame)
    except layouts.error as error:
        raise WireError(f"a request of {len(frame)} bytes has no whole header") from error
    pos = _REQUEST.size
    client_id = None
    if size >= 0:
        end = pos + size
        if end > len(frame):
            raise WireError(f"client id: stated as {size} bytes, with {len(frame) - pos} left")
        try:
            client_id = frame[pos:end].decode() if type(frame) is bytes else str(frame[pos:end], "utf-8")
        except UnicodeDecodeError as error:
            raise WireError("the client id is not UTF-8") from error
        pos = end
    elif size != -1:
        raise WireError(f"client id: stated as {size} bytes")
    api = _APIS.get(api_key)
    if api is not None and version >= flexible_from(api):
        pos = _skip_tags(frame, pos)
    return Header(api, api_key, version, correlation_id, client_id, pos)


def decode_request(frame: Buffer) -> tuple[Header, Message]:
    """A whole request. Its API and version must be ones that we have."""
    header = decode_header(frame)
    if header.api is None:
        raise WireError(f"there is no API {header.api_key} here")
    return header, decode(request_class(header.api), header.version, frame, header.body_start)


def encode_request(
    api: Api, version: int, correlation_id: int, client_id: str | None, message: Message
) -> bytes:
    """A whole request, size first."""
    _check(message, request_class(api))
    header = messages.RequestHeader(
        request_api_key=api,
        request_api_version=version,
        correlation_id=correlation_id,
        client_id=client_id,
    )
    out = bytearray(4)
    write(out, header, 2 if version >= flexible_from(api) else 1)
    write(out, message, version)
    _set(_INT32, out, len(out) - 4)
    return bytes(out)


def encode_response(api: Api, version: int, correlation_id: int, message: Message) -> bytes:
    """A whole response, size first."""
    return b"".join(encode_response_parts(api, version, correlation_id, message))


def encode_response_parts(
    api: Api, version: int, correlation_id: int, message: Message
) -> list[bytearray | memoryview]:
    """A whole response as buffers to be sent one after the other: the records of a Fetch are not copied."""
    _check(message, response_class(api))
    out = bytearray(_RESPONSE.size)
    if api is not Api.API_VERSIONS and version >= flexible_from(api):
        out.append(0)
    if api is Api.FETCH:
        parts = response_parts(out, message, version)
    else:
        write(out, message, version)
        parts = [out]
    _set(_RESPONSE, out, sum(map(len, parts)) - 4, correlation_id)
    return parts


def decode_response(
    api: Api, version: int, frame: Buffer, *, elements_max: int = RESPONSE_ELEMENTS_MAX
) -> tuple[int, Message]:
    """The correlation id and the message of a response."""
    try:
        (correlation_id,) = _INT32.unpack_from(frame)
    except layouts.error as error:
        raise WireError(f"a response of {len(frame)} bytes has no whole header") from error
    pos = _INT32.size
    if api is not Api.API_VERSIONS and version >= flexible_from(api):
        pos = _skip_tags(frame, pos)
    return correlation_id, decode(response_class(api), version, frame, pos, elements_max=elements_max)


def _skip_tags(frame: Buffer, pos: int) -> int:
    """Past the header's tagged fields. None are defined, so all of them are someone's own."""
    try:
        if frame[pos] == 0:
            return pos + 1
        count, pos = read_uvarint(frame, pos)
        if count > TAGS_MAX:
            raise WireError(f"{count} tagged fields in a header, {TAGS_MAX} allowed")
        for _ in range(count):
            _, pos = read_uvarint(frame, pos)
            size, pos = read_uvarint(frame, pos)
            pos += size
    except IndexError as error:
        raise WireError("a header ends too early") from error
    if pos > len(frame):
        raise WireError("a header's tagged field is longer than the frame")
    return pos


def _set(layout: layouts.Struct, out: bytearray, *values: int) -> None:
    try:
        layout.pack_into(out, 0, *values)
    except layouts.error as error:
        raise WireError(f"size or correlation id does not fit a frame: {values}") from error


def _check(message: Message, cls: type[Message]) -> None:
    if type(message) is not cls:
        raise WireError(f"a {type(message).__name__} where a {cls.__name__} belongs")


@cache
def request_class(api: Api) -> type[Message]:
    return getattr(messages, f"{api.title}Request")  # type: ignore[no-any-return]


@cache
def response_class(api: Api) -> type[Message]:
    return getattr(messages, f"{api.title}Response")  # type: ignore[no-any-return]
