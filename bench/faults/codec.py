"""Kafka's primitive types as bytes, written for the oracle alone: it must not trust the code under test.

Only what the oracle's own requests need: the old encodings with fixed lengths, and the compact ones for the few
requests that exist in no older version.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
from typing import TypeVar

from bench.faults.varints import uvarint

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
    """Bytes are sent as they are, so that a test can send what no text can say."""
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
    """Takes one value after the other from an answer."""

    __slots__ = ("data", "position")

    def __init__(self, data: bytes, position: int = 0) -> None:
        self.data = data
        self.position = position

    def take(self, size: int) -> bytes:
        if size < 0 or self.position + size > len(self.data):
            raise ValueError(f"the answer has no {size} bytes at {self.position} of {len(self.data)}")
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
