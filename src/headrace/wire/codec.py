"""Messages to bytes and back, in any version of theirs.

Nearly all messages go by their shapes. Those that carry records, and those that come as often, are read and
written by hand (``produce``, ``fetch``): tests hold them to the same bytes, and records are not copied.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from headrace.wire import compiled, fetch, produce
from headrace.wire.compiled import ELEMENTS_MAX, Buffer

if TYPE_CHECKING:
    from headrace.wire.message import Message

__all__ = ["decode", "encode", "write"]

M = TypeVar("M", bound="Message")

_READ_BY_HAND: dict[str, Callable[[int, Buffer, int, int], Any]] = {
    "ProduceRequest": produce.decode_request,
    "FetchRequest": fetch.decode_request,
}


def decode(cls: type[M], version: int, buf: Buffer, pos: int = 0, *, elements_max: int = ELEMENTS_MAX) -> M:
    """The message that the buffer holds from ``pos`` on. Bytes behind it are a WireError, but ignored in a request.

    ``elements_max`` bounds array elements and tagged fields in the whole message. The records of a Produce
    request are views into the buffer, which must therefore not change while the message lives.
    """
    by_hand = _READ_BY_HAND.get(cls.__name__)
    if by_hand is not None:
        return by_hand(version, buf, pos, elements_max)  # type: ignore[no-any-return]
    return compiled.decode(cls, version, buf, pos, elements_max=elements_max)


def encode(message: Message, version: int) -> bytes:
    """The message's bytes in a version, without header or size."""
    out = bytearray()
    write(out, message, version)
    return bytes(out)


def write(out: bytearray, message: Message, version: int) -> None:
    """Appends the message's bytes. After an error the bytearray's content is of no use."""
    if type(message).__name__ == "ProduceResponse":
        produce.write_response(out, message, version)
    else:
        compiled.write(out, message, version)
