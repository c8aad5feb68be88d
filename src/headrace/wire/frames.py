"""Frames between client and broker: a header and a message.

    request     size int32 | api int16 | version int16 | correlation int32 | client id | tags | message
    response    size int32 | correlation int32 | tags | message

Tagged fields exist from the API's first flexible version on. The client id always has a 16-bit length, because a broker
must be able to read the header of an unknown version. The header of the ApiVersions response never has tagged fields,
because a client reads it before it knows the broker's versions.

Decoding expects frames without their size, which the transport reads. Encoding includes the size.

Most messages are encoded and decoded by their shapes. Produce and Fetch have hand-written code (``produce``,
``fetch``), because they are frequent and their records must not be copied. Tests compare it with the general code.
"""

from __future__ import annotations

import struct as layouts
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from headrace.wire import fetch, messages, produce, readers, writers
from headrace.wire.api import Api, flexible_from
from headrace.wire.fetch import response_parts
from headrace.wire.primitives import ELEMENTS_MAX, Buffer, WireError, read_uvarint

if TYPE_CHECKING:
    from headrace.wire.message import Message

__all__ = [
    "Header",
    "decode",
    "decode_header",
    "decode_request",
    "decode_response",
    "encode",
    "encode_request",
    "encode_response",
    "encode_response_parts",
    "request_class",
    "response_class",
    "write",
]

# The maximum number of tagged fields in a header. The protocol does not define any yet.
TAGS_MAX = 100

# The limit for responses is high: a client trusts its broker, and the metadata of a large cluster has many elements.
RESPONSE_ELEMENTS_MAX = 2_000_000

_APIS: dict[int, Api] = {int(api): api for api in Api}
_REQUEST = layouts.Struct(">hhih")
_RESPONSE = layouts.Struct(">ii")
_INT32 = layouts.Struct(">i")


class Header(NamedTuple):
    """The header of a request. ``api`` is None if the API key is unknown. The message begins at ``body_start``."""

    api: Api | None
    api_key: int
    version: int
    correlation_id: int
    client_id: str | None
    body_start: int


def decode_header(frame: Buffer) -> Header:
    """Decode the header of a request, even if its API or version is unknown."""
    try:
        api_key, version, correlation_id, size = _REQUEST.unpack_from(frame)
    except layouts.error as error:
        raise WireError(f"a request of {len(frame)} bytes is shorter than a header") from error
    pos = _REQUEST.size
    client_id = None
    if size >= 0:
        end = pos + size
        if end > len(frame):
            raise WireError(f"client id: invalid length {size}, with {len(frame) - pos} bytes left")
        try:
            client_id = frame[pos:end].decode() if type(frame) is bytes else str(frame[pos:end], "utf-8")
        except UnicodeDecodeError as error:
            raise WireError("the client id is not UTF-8") from error
        pos = end
    elif size != -1:
        raise WireError(f"client id: invalid length {size}")
    api = _APIS.get(api_key)
    if api is not None and version >= flexible_from(api):
        pos = _skip_tags(frame, pos)
    return Header(api, api_key, version, correlation_id, client_id, pos)


def decode_request(frame: Buffer) -> tuple[Header, Message]:
    """Decode a whole request; raises ``WireError`` if its API or version is unknown."""
    header = decode_header(frame)
    if header.api is None:
        raise WireError(f"unknown API key {header.api_key}")
    return header, decode(request_class(header.api), header.version, frame, header.body_start)


def encode_request(
    api: Api, version: int, correlation_id: int, client_id: str | None, message: Message
) -> bytes:
    """Encode a whole request, including its size."""
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
    """Encode a whole response, including its size."""
    return b"".join(encode_response_parts(api, version, correlation_id, message))


def encode_response_parts(
    api: Api, version: int, correlation_id: int, message: Message
) -> list[bytearray | memoryview]:
    """Encode a whole response as consecutive buffers. The records of a Fetch response are not copied."""
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
    """Decode a response; returns its correlation id and its message."""
    try:
        (correlation_id,) = _INT32.unpack_from(frame)
    except layouts.error as error:
        raise WireError(f"a response of {len(frame)} bytes is shorter than a header") from error
    pos = _INT32.size
    if api is not Api.API_VERSIONS and version >= flexible_from(api):
        pos = _skip_tags(frame, pos)
    return correlation_id, decode(response_class(api), version, frame, pos, elements_max=elements_max)


def _skip_tags(frame: Buffer, pos: int) -> int:
    """Skip the tagged fields of a header; returns the position after them. The protocol does not define any yet."""
    try:
        if frame[pos] == 0:
            return pos + 1
        count, pos = read_uvarint(frame, pos)
        if count > TAGS_MAX:
            raise WireError(f"too many tagged fields in the header: {count} (limit {TAGS_MAX})")
        for _ in range(count):
            _, pos = read_uvarint(frame, pos)
            size, pos = read_uvarint(frame, pos)
            pos += size
    except IndexError as error:
        raise WireError("the header is incomplete") from error
    if pos > len(frame):
        raise WireError("a tagged field of the header is longer than the frame")
    return pos


def _set(layout: layouts.Struct, out: bytearray, *values: int) -> None:
    try:
        layout.pack_into(out, 0, *values)
    except layouts.error as error:
        raise WireError(f"size or correlation id is out of range: {values}") from error


def _check(message: Message, cls: type[Message]) -> None:
    if type(message) is not cls:
        raise WireError(f"expected a {cls.__name__}, got a {type(message).__name__}")


@cache
def request_class(api: Api) -> type[Message]:
    return getattr(messages, f"{api.title}Request")  # type: ignore[no-any-return]


@cache
def response_class(api: Api) -> type[Message]:
    return getattr(messages, f"{api.title}Response")  # type: ignore[no-any-return]


M = TypeVar("M", bound="Message")

_READ_BY_HAND: dict[str, Callable[[int, Buffer, int, int], Any]] = {
    "ProduceRequest": produce.decode_request,
    "FetchRequest": fetch.decode_request,
}


def decode(cls: type[M], version: int, buf: Buffer, pos: int = 0, *, elements_max: int = ELEMENTS_MAX) -> M:
    """Decode the message in the buffer from ``pos`` on. Extra bytes after a request are ignored; after any other
    message they raise ``WireError``.

    ``elements_max`` limits the array elements and tagged fields in the whole message. The records of a Produce request
    are views into the buffer, so the buffer must not change while the message is in use.
    """
    by_hand = _READ_BY_HAND.get(cls.__name__)
    if by_hand is not None:
        return by_hand(version, buf, pos, elements_max)  # type: ignore[no-any-return]
    return readers.decode(cls, version, buf, pos, elements_max=elements_max)


def encode(message: Message, version: int) -> bytes:
    """Encode the message in this version, without header and size."""
    out = bytearray()
    write(out, message, version)
    return bytes(out)


def write(out: bytearray, message: Message, version: int) -> None:
    """Append the encoded message to ``out``. After an error, the content of ``out`` is undefined."""
    if type(message).__name__ == "ProduceResponse":
        produce.write_response(out, message, version)
    else:
        writers.write(out, message, version)
