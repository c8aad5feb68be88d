"""Kafka's primitive types as bytes, for the oracle alone, which must not trust the code under test.

The module has only what the oracle's requests need: the old encodings with fixed lengths, and the compact encodings for
the few requests without an older version.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
from typing import TypeVar

__all__ = [
    "NO_TAGS",
    "Reader",
    "array",
    "blob",
    "boolean",
    "compact_array",
    "compact_string",
    "int8",
    "int16",
    "int32",
    "int64",
    "string",
    "unzigzag",
    "uvarint",
    "zigzag",
]

T = TypeVar("T")

NO_TAGS = b"\x00"


def int8(value: int) -> bytes:
    return struct.pack(">b", value)


def int16(value: int) -> bytes:
    return struct.pack(">h", value)


def int32(value: int) -> bytes:
    return struct.pack(">i", value)


def int64(value: int) -> bytes:
    return struct.pack(">q", value)


def boolean(value: bool) -> bytes:
    return b"\x01" if value else b"\x00"


def string(value: str | bytes | None) -> bytes:
    """Encode a string. Bytes are sent unchanged, so that a test can send invalid text."""
    if value is None:
        return int16(-1)
    raw = value.encode() if isinstance(value, str) else value
    return int16(len(raw)) + raw


def blob(value: bytes | None) -> bytes:
    return int32(-1) if value is None else int32(len(value)) + value


def array(items: Iterable[bytes] | None) -> bytes:
    if items is None:
        return int32(-1)
    parts = list(items)
    return int32(len(parts)) + b"".join(parts)


def compact_string(value: str | bytes | None) -> bytes:
    if value is None:
        return uvarint(0)
    raw = value.encode() if isinstance(value, str) else value
    return uvarint(len(raw) + 1) + raw


def compact_array(items: Iterable[bytes]) -> bytes:
    parts = list(items)
    return uvarint(len(parts) + 1) + b"".join(parts)


class Reader:
    """Reads one value after the other from a response."""

    __slots__ = ("data", "position")

    def __init__(self, data: bytes, position: int = 0) -> None:
        self.data = data
        self.position = position

    def take(self, size: int) -> bytes:
        if size < 0 or self.position + size > len(self.data):
            raise ValueError(
                f"the response does not have {size} bytes at {self.position} of {len(self.data)}"
            )
        piece = self.data[self.position : self.position + size]
        self.position += size
        return piece

    def int8(self) -> int:
        return int(struct.unpack(">b", self.take(1))[0])

    def int16(self) -> int:
        return int(struct.unpack(">h", self.take(2))[0])

    def int32(self) -> int:
        return int(struct.unpack(">i", self.take(4))[0])

    def int64(self) -> int:
        return int(struct.unpack(">q", self.take(8))[0])

    def boolean(self) -> bool:
        return self.take(1) != b"\x00"

    def string(self) -> str | None:
        size = self.int16()
        return None if size < 0 else self.take(size).decode()

    def blob(self) -> bytes | None:
        size = self.int32()
        return None if size < 0 else self.take(size)

    def array(self, item: Callable[[], T]) -> list[T]:
        return [item() for _ in range(self.int32())]

    def uvarint(self) -> int:
        value = shift = 0
        while True:
            byte = self.take(1)[0]
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7

    def compact_string(self) -> str | None:
        size = self.uvarint()
        return None if size == 0 else self.take(size - 1).decode()

    def compact_array(self, item: Callable[[], T]) -> list[T]:
        return [item() for _ in range(self.uvarint() - 1)]

    def skip_tags(self) -> None:
        for _ in range(self.uvarint()):
            self.uvarint()
            self.take(self.uvarint())


# Variable-length integers of the protocol and of the record format


def uvarint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def zigzag(value: int) -> bytes:
    return uvarint((value << 1) ^ (value >> 63))


def unzigzag(data: bytes, at: int) -> tuple[int, int]:
    """Return the number and the position after it."""
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1), at
        shift += 7
