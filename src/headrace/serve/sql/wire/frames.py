"""Encodes and decodes messages and errors of PostgreSQL's protocol, version 3. This module does not use sockets.

    startup       length (4), code (4), body          the first message of a connection has no type byte
    message       type (1), length (4), body          the length includes its own 4 bytes, but not the type

Every length is checked before it is used. Each Headrace error code is mapped to the nearest SQLSTATE.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from headrace.errors import HeadraceError

__all__ = [
    "CANCEL",
    "GSS",
    "PROTOCOL",
    "SSL",
    "Fields",
    "PgError",
    "ProtocolViolation",
    "StatementFailed",
    "error",
    "message",
    "negotiate_version",
    "parameter_description",
    "parameter_status",
    "pg_error_of",
    "ready_for_query",
    "row_description",
]

PROTOCOL = 196_608
CANCEL, SSL, GSS = 80_877_102, 80_877_103, 80_877_104
_INT = struct.Struct(">i")
_SHORT = struct.Struct(">h")


class ProtocolViolation(Exception):
    """The client sent an invalid message."""


class ColumnDescription(NamedTuple):
    name: str
    oid: int
    size: int
    binary: bool


class Fields:
    """Reads the body of a message from start to end."""

    def __init__(self, body: bytes) -> None:
        self._body = body
        self._at = 0

    @property
    def is_done(self) -> bool:
        return self._at == len(self._body)

    def take(self, count: int) -> bytes:
        if count < 0 or self._at + count > len(self._body):
            raise ProtocolViolation(
                f"a field has {count} bytes, but only {len(self._body) - self._at} are left"
            )
        self._at += count
        return self._body[self._at - count : self._at]

    def byte(self) -> bytes:
        return self.take(1)

    def short(self) -> int:
        return int(_SHORT.unpack(self.take(2))[0])

    def integer(self) -> int:
        return int(_INT.unpack(self.take(4))[0])

    def text(self) -> str:
        end = self._body.find(b"\0", self._at)
        if end < 0:
            raise ProtocolViolation("a text has no terminating NUL byte")
        raw = self._body[self._at : end]
        self._at = end + 1
        try:
            return raw.decode()
        except UnicodeDecodeError as error:
            raise ProtocolViolation(f"a text is not UTF-8: {error.reason}") from None

    def value(self) -> bytes | None:
        length = self.integer()
        return None if length == -1 else self.take(length)

    def shorts(self) -> list[int]:
        return [self.short() for _ in range(self._count())]

    def ints(self) -> list[int]:
        return [self.integer() for _ in range(self._count())]

    def values(self) -> list[bytes | None]:
        return [self.value() for _ in range(self._count())]

    def _count(self) -> int:
        count = self.short()
        if count < 0:
            raise ProtocolViolation(f"negative count: {count}")
        return count


def message(letter: bytes, *parts: bytes) -> bytes:
    body = b"".join(parts)
    return letter + _INT.pack(len(body) + 4) + body


def text(value: str) -> bytes:
    return value.replace("\0", "").encode("utf-8", "replace") + b"\0"


def parameter_status(name: str, value: str) -> bytes:
    return message(b"S", text(name), text(value))


def negotiate_version(extensions: Sequence[str]) -> bytes:
    """Encode NegotiateProtocolVersion: version 3.0, and the extensions that are not supported."""
    return message(b"v", _INT.pack(PROTOCOL), _INT.pack(len(extensions)), *map(text, extensions))


def ready_for_query(status: bytes) -> bytes:
    return message(b"Z", status)


def row_description(columns: Sequence[ColumnDescription]) -> bytes:
    parts = [_SHORT.pack(len(columns))]
    for column in columns:
        parts.append(text(column.name))
        parts.append(struct.pack(">ihihih", 0, 0, column.oid, column.size, -1, int(column.binary)))
    return message(b"T", *parts)


def parameter_description(oids: Sequence[int]) -> bytes:
    return message(b"t", _SHORT.pack(len(oids)), *map(_INT.pack, oids))


def error(state: str, reason: str, *, detail: str = "", hint: str = "", fatal: bool = False) -> bytes:
    level = "FATAL" if fatal else "ERROR"
    fields = {b"S": level, b"V": level, b"C": state, b"M": reason, b"D": detail, b"H": hint}
    return message(b"E", *(letter + text(value) for letter, value in fields.items() if value), b"\0")


_STATES = {
    "HR-SERVE-SQL-REFUSED": "25006",
    "HR-SERVE-SQL": "42601",
    "HR-SERVE-SQL-LIMIT": "54000",
    "HR-SERVE-SQL-TIME": "57014",
    "HR-SERVE-SQL-ENDED": "53200",
    "HR-SERVE-NOT-THERE": "42P01",
    "HR-SERVE-SCOPE": "42501",
    "HR-SERVE-BUSY": "53300",
    "HR-SERVE-SHARE": "53400",
    "HR-SERVE-DRAINING": "57P01",
    "HR-SERVE-NOT-SERVING": "55000",
    "HR-SERVE-MOVED": "40001",
    "HR-SERVE-LATE": "57014",
    "HR-SERVE-AFTER": "22023",
    "HR-SERVE-AFTER-OUTDATED": "22023",
    "HR-VIEW-QUESTION": "0A000",
}


@dataclass(frozen=True, slots=True)
class PgError:
    state: str
    message: str
    detail: str = ""
    hint: str = ""

    def encode(self) -> bytes:
        return error(self.state, self.message, detail=self.detail, hint=self.hint)


class StatementFailed(Exception):
    """An error that exists only in this protocol, not over HTTP."""

    def __init__(self, pg_error: PgError) -> None:
        super().__init__(pg_error.message)
        self.pg_error = pg_error


def pg_error_of(failure: HeadraceError) -> PgError:
    state = _STATES.get(failure.code, "XX000")
    return PgError(state, f"{failure.message} [{failure.code}]", failure.detail, failure.hint)
