"""Readers and writers for the primitive types of the protocol: varints, counts, strings, tagged fields.

All other readers and writers in this package use them. A reader has three arguments: the bytes, a position and a
budget. It returns the value and the position after it. A writer appends a value to a bytearray.

A reader does not trust the bytes. It compares a length or a count with the remaining bytes before it slices or
allocates anything. The budget is the number of array elements and tagged fields that the rest of the message may have.
It limits the memory, because a few bytes can become an object of a few hundred bytes. A position beyond the end raises
IndexError or struct.error, and invalid UTF-8 raises UnicodeDecodeError. The caller converts these errors
(``MALFORMED``) to ``WireError``.
"""

from __future__ import annotations

import struct as layouts
from collections.abc import Callable
from typing import Any

from headrace.errors import HeadraceError

__all__ = [
    "ELEMENTS_MAX",
    "ENCODE_ERRORS",
    "FIXED",
    "MALFORMED",
    "STRING_MAX",
    "Buffer",
    "Reader",
    "WireError",
    "Writer",
    "check_null_allowed",
    "malformed",
    "read_compact_count",
    "read_count",
    "read_tagged",
    "read_uvarint",
    "reserve_elements",
    "string_reader",
    "string_writer",
    "too_long",
    "write_count",
    "write_null",
    "write_uvarint",
]

Buffer = bytes | bytearray | memoryview
Reader = Callable[[bytes, int, list[int]], tuple[Any, int]]
Writer = Callable[[bytearray, Any], None]

STRING_MAX = 0x7FFF
ELEMENTS_MAX = 50_000
"""The maximum number of array elements and tagged fields in one request. An element of a few bytes becomes an object of
up to about 300 bytes, so a hostile request uses at most about 16 MB. Known clients stay far below this limit.
"""

FIXED = {
    "bool": "?",
    "int8": "b",
    "int16": "h",
    "uint16": "H",
    "int32": "i",
    "int64": "q",
    "float64": "d",
    "uuid": "16s",
}
"""The format character of the ``struct`` module for each fixed-width type."""

_read_int16, _write_int16 = layouts.Struct(">h").unpack_from, layouts.Struct(">h").pack
_read_int32, _write_int32 = layouts.Struct(">i").unpack_from, layouts.Struct(">i").pack


class WireError(HeadraceError):
    """A malformed frame, or a message that cannot be encoded in the requested version.

    For any bytes from a peer, decoding either returns a message or raises this error. A server can then close the
    connection.
    """

    code = "HR-WIRE-MALFORMED"


MALFORMED = (WireError, IndexError, layouts.error, UnicodeDecodeError)
"""The errors that a reader raises for incomplete bytes, a wrong length or invalid UTF-8."""
ENCODE_ERRORS = (layouts.error, TypeError, AttributeError, ValueError, OverflowError)
"""The errors that a writer raises for a value that does not fit its field."""


def malformed(name: str, version: int, error: Exception) -> WireError:
    if isinstance(error, WireError):
        reason = error.message
    elif isinstance(error, UnicodeDecodeError):
        reason = f"text is not UTF-8 ({error.reason})"
    else:
        reason = "the message is incomplete"
    return WireError(f"malformed {name} of version {version}: {reason}")


def read_uvarint(buf: bytes | bytearray | memoryview, pos: int) -> tuple[int, int]:
    """Read an unsigned varint of at most 32 bits: seven bits per byte, the low bits first."""
    value = shift = 0
    while True:
        byte = buf[pos]
        pos += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            break
        shift += 7
        if shift > 28:
            raise WireError("a varint is longer than 5 bytes")
    if value > 0xFFFFFFFF:
        raise WireError("a varint is larger than 32 bits")
    return value, pos


def read_count(buf: bytes, pos: int) -> tuple[int, int]:
    return _read_int32(buf, pos)[0], pos + 4


def read_compact_count(buf: bytes, pos: int) -> tuple[int, int]:
    size = buf[pos]
    if size < 0x80:
        return size - 1, pos + 1
    size, pos = read_uvarint(buf, pos)
    return size - 1, pos


def string_reader(name: str, flexible: bool, nullable: bool) -> Reader:
    def read_compact(buf: bytes, pos: int, budget: list[int]) -> tuple[Any, int]:
        size = buf[pos]
        if size < 0x80:
            pos += 1
        else:
            size, pos = read_uvarint(buf, pos)
        if size == 0:
            check_null_allowed(name, nullable)
            return None, pos
        end = pos + size - 1
        if end > len(buf) or size > STRING_MAX + 1:
            raise too_long(name, size - 1, len(buf) - pos)
        return str(buf[pos:end], "utf-8"), end

    def read_classic(buf: bytes, pos: int, budget: list[int]) -> tuple[Any, int]:
        (size,) = _read_int16(buf, pos)
        pos += 2
        if size < 0:
            check_null_allowed(name, nullable and size == -1)
            return None, pos
        end = pos + size
        if end > len(buf):
            raise too_long(name, size, len(buf) - pos)
        return str(buf[pos:end], "utf-8"), end

    return read_compact if flexible else read_classic


def read_tagged(
    buf: bytes, pos: int, budget: list[int], tagged: dict[int, tuple[int, Reader]], values: list[Any]
) -> int:
    """Read tagged fields, which a peer may omit or add. Unknown tags are skipped. A repeated tag is an error."""
    if not buf[pos]:
        return pos + 1
    count, pos = read_uvarint(buf, pos)
    reserve_elements("tagged fields", count, 2, len(buf) - pos, budget)
    seen_tags = set()
    for _ in range(count):
        tag, pos = read_uvarint(buf, pos)
        size, pos = read_uvarint(buf, pos)
        end = pos + size
        if end > len(buf):
            raise too_long(f"tag {tag}", size, len(buf) - pos)
        if tag in seen_tags:
            raise WireError(f"tag {tag} is repeated")
        seen_tags.add(tag)
        if tag in tagged:
            index, reader = tagged[tag]
            values[index], pos = reader(buf, pos, budget)
            if pos != end:
                raise WireError(f"tag {tag} declares {size} bytes but has {size + pos - end}")
        pos = end
    return pos


def reserve_elements(name: str, count: int, size_min: int, remaining: int, budget: list[int]) -> None:
    if not 0 <= count * size_min <= remaining:
        raise WireError(f"{name}: {count} elements do not fit in the remaining {remaining} bytes")
    budget[0] -= count
    if budget[0] < 0:
        raise WireError(f"{name}: too many array elements and tagged fields in one message")


def check_null_allowed(name: str, allowed: bool) -> None:
    if not allowed:
        raise WireError(f"{name} is null or has a negative length; this version does not allow that")


def too_long(name: str, size: int, remaining: int) -> WireError:
    return WireError(f"{name}: invalid length {size}, with {remaining} bytes left")


def write_uvarint(out: bytearray, value: int) -> None:
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)


def write_count(out: bytearray, count: int, flexible: bool) -> None:
    if not flexible:
        out += _write_int32(count)
    elif count < 0x7F:
        out.append(count + 1)
    else:
        write_uvarint(out, count + 1)


def string_writer(flexible: bool, nullable: bool) -> Writer:
    def write(out: bytearray, value: Any) -> None:
        if value is None:
            write_null(out, nullable, b"\0" if flexible else b"\xff\xff")
            return
        text = value.encode()
        size = len(text)
        if size > STRING_MAX:
            raise ValueError(f"text is too long: {size} bytes (limit {STRING_MAX})")
        if not flexible:
            out += _write_int16(size)
        elif size < 0x7F:
            out.append(size + 1)
        else:
            write_uvarint(out, size + 1)
        out += text

    return write


def write_null(out: bytearray, allowed: bool, null: bytes) -> None:
    if not allowed:
        raise ValueError("null is not allowed here")
    out += null
