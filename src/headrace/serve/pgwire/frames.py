"""Messages of PostgreSQL's protocol, version 3: bytes in, bytes out, no sockets.

    startup       length (4), code (4), body          the first message of a connection has no letter
    message       letter (1), length (4), body        the length counts itself, not the letter

Every length is checked before anything is read by it.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple

__all__ = [
    "CANCEL",
    "GSS",
    "PROTOCOL",
    "SSL",
    "Fields",
    "Unfit",
    "error",
    "message",
    "notice_of_ready",
    "older_protocol",
    "parameter_description",
    "parameter_status",
    "row_description",
]

PROTOCOL = 196_608
CANCEL, SSL, GSS = 80_877_102, 80_877_103, 80_877_104
_INT = struct.Struct(">i")
_SHORT = struct.Struct(">h")


class Unfit(Exception):
    """Bytes that are no message."""


class Described(NamedTuple):
    name: str
    oid: int
    size: int
    binary: bool


class Fields:
    """The body of a message, read from its begin."""

    def __init__(self, body: bytes) -> None:
        self._body = body
        self._at = 0

    @property
    def is_done(self) -> bool:
        return self._at == len(self._body)

    def take(self, count: int) -> bytes:
        if count < 0 or self._at + count > len(self._body):
            raise Unfit(f"{count} bytes are told, and {len(self._body) - self._at} there")
        self._at += count
        return self._body[self._at - count : self._at]

    def byte(self) -> bytes:
        return self.take(1)

    def short(self) -> int:
        return int(_SHORT.unpack(self.take(2))[0])

    def whole(self) -> int:
        return int(_INT.unpack(self.take(4))[0])

    def text(self) -> str:
        end = self._body.find(b"\0", self._at)
        if end < 0:
            raise Unfit("a text does not end")
        raw = self._body[self._at : end]
        self._at = end + 1
        try:
            return raw.decode()
        except UnicodeDecodeError as error:
            raise Unfit(f"a text is not UTF-8: {error.reason}") from None

    def value(self) -> bytes | None:
        length = self.whole()
        return None if length == -1 else self.take(length)

    def shorts(self) -> list[int]:
        return [self.short() for _ in range(self._count())]

    def ints(self) -> list[int]:
        return [self.whole() for _ in range(self._count())]

    def values(self) -> list[bytes | None]:
        return [self.value() for _ in range(self._count())]

    def _count(self) -> int:
        count = self.short()
        if count < 0:
            raise Unfit(f"a count is {count}")
        return count


def message(letter: bytes, *parts: bytes) -> bytes:
    body = b"".join(parts)
    return letter + _INT.pack(len(body) + 4) + body


def text(value: str) -> bytes:
    return value.replace("\0", "").encode("utf-8", "replace") + b"\0"


def parameter_status(name: str, value: str) -> bytes:
    return message(b"S", text(name), text(value))


def older_protocol(extensions: Sequence[str]) -> bytes:
    """That 3.0 is spoken, and which of the wished extensions are not there."""
    return message(b"v", _INT.pack(PROTOCOL), _INT.pack(len(extensions)), *map(text, extensions))


def notice_of_ready(status: bytes) -> bytes:
    return message(b"Z", status)


def row_description(columns: Sequence[Described]) -> bytes:
    parts = [_SHORT.pack(len(columns))]
    for one in columns:
        parts.append(text(one.name))
        parts.append(struct.pack(">ihihih", 0, 0, one.oid, one.size, -1, int(one.binary)))
    return message(b"T", *parts)


def parameter_description(oids: Sequence[int]) -> bytes:
    return message(b"t", _SHORT.pack(len(oids)), *map(_INT.pack, oids))


def error(state: str, told: str, *, detail: str = "", hint: str = "", fatal: bool = False) -> bytes:
    level = "FATAL" if fatal else "ERROR"
    fields = {b"S": level, b"V": level, b"C": state, b"M": told, b"D": detail, b"H": hint}
    return message(b"E", *(letter + text(one) for letter, one in fields.items() if one), b"\0")
