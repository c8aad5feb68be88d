"""Numbers of as many bytes as they need, as the protocol and the record format write them; the oracle's own reading."""

from __future__ import annotations

__all__ = ["unzigzag", "uvarint", "zigzag"]


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
    """The number, and the position behind it."""
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1), at
        shift += 7
