"""Numbers of variable length, zigzag-coded: seven bits to a byte, small numbers of either sign take one.

Readers of the format take up to 5 bytes for 32-bit and 10 for 64-bit fields. So do we; what is longer or wider
is refused.
"""

from __future__ import annotations

from headrace.records.errors import InvalidRecords
from headrace.records.header import Buffer

__all__ = ["append_varint", "read_varint", "read_varlong", "varint_size"]


def read_varint(buf: Buffer, pos: int, end: int) -> tuple[int, int]:
    """A 32-bit number at ``pos`` and the position behind it."""
    if pos < end and (byte := buf[pos]) < 0x80:  # nearly always
        return (byte >> 1) ^ -(byte & 1), pos + 1
    return _read(buf, pos, end, 5, 32)


def read_varlong(buf: Buffer, pos: int, end: int) -> tuple[int, int]:
    if pos < end and (byte := buf[pos]) < 0x80:
        return (byte >> 1) ^ -(byte & 1), pos + 1
    return _read(buf, pos, end, 10, 64)


def _read(buf: Buffer, pos: int, end: int, bytes_max: int, bits_max: int) -> tuple[int, int]:
    value = shift = 0
    start = pos
    while pos < end:
        byte = buf[pos]
        pos += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            if value >> bits_max:
                raise InvalidRecords(f"number at byte {start} is wider than {bits_max} bits")
            return (value >> 1) ^ -(value & 1), pos
        shift += 7
        if pos - start == bytes_max:
            raise InvalidRecords(f"number at byte {start} is longer than {bytes_max} bytes")
    raise InvalidRecords(f"number at byte {start} ends outside its record")


def append_varint(out: bytearray, value: int) -> None:
    rest = _zigzag(value)
    while rest >= 0x80:
        out.append(rest & 0x7F | 0x80)
        rest >>= 7
    out.append(rest)


def varint_size(value: int) -> int:
    """Bytes of the shortest form."""
    if 0 <= value < 64:
        return 1
    return (_zigzag(value).bit_length() + 6) // 7 or 1


def _zigzag(value: int) -> int:
    return value << 1 if value >= 0 else (-value << 1) - 1
