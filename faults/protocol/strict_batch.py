"""Decides whether every reader can read a batch, with the oracle's own implementation of the format.

It uses other libraries than the product. It is slow and has no limits: do not use it on decompression bombs.
"""

from __future__ import annotations

import struct
import zlib

import crc32c
import lz4.frame
import snappy
import zstandard

from faults.protocol.codec import zigzag

__all__ = ["NONE", "batch_with_header", "compressed", "fault_of", "record"]

NONE, GZIP, SNAPPY, LZ4, ZSTD = range(5)
_HEAD = struct.Struct(">qiibIhiqqqhii")
_HEADERS_MAX = 10_000
_XERIAL = b"\x82SNAPPY\0"


class _Defect(Exception):
    pass


def record(index: int, value: bytes, *, key: bytes | None = b"key", headers: tuple[bytes, ...] = ()) -> bytes:
    body = b"\0\0" + zigzag(index)
    body += zigzag(-1) if key is None else zigzag(len(key)) + key
    body += zigzag(len(value)) + value + zigzag(len(headers))
    for name in headers:
        body += zigzag(len(name)) + name + zigzag(-1)
    return zigzag(len(body)) + body


def compressed(codec: int, payload: bytes) -> bytes:
    if codec == GZIP:
        squeeze = zlib.compressobj(6, zlib.DEFLATED, 31)
        return squeeze.compress(payload) + squeeze.flush()
    if codec == SNAPPY:
        return bytes(snappy.compress(payload))
    if codec == LZ4:
        return bytes(lz4.frame.compress(payload, block_linked=False))
    if codec == ZSTD:
        return zstandard.ZstdCompressor().compress(payload)
    return payload


def batch_with_header(
    payload: bytes,
    count: int,
    timestamp_ms: int,
    *,
    codec: int = NONE,
    last_delta: int | None = None,
    base_offset: int = 0,
    length_error: int = 0,
    crc_error: int = 0,
) -> bytes:
    """Build a batch around a payload. The checksum is correct even if the header is not."""
    last = count - 1 if last_delta is None else last_delta
    checked = struct.pack(">hiqqqhii", codec, last, timestamp_ms, timestamp_ms, -1, -1, -1, count) + payload
    crc = crc32c.crc32c(checked) ^ crc_error
    return struct.pack(">qiibI", base_offset, 9 + len(checked) + length_error, -1, 2, crc) + checked


def fault_of(batch: bytes) -> str | None:
    """Return what is wrong with a produced batch, or None if every reader can read it."""
    try:
        _check(batch)
    except _Defect as fault:
        return str(fault)
    except (struct.error, IndexError, UnicodeDecodeError) as error:
        return f"cut short: {error}"
    return None


def _check(batch: bytes) -> None:
    base, length, _, magic, crc, attributes, last, *_, count = _HEAD.unpack_from(batch)
    if base or length + 12 != len(batch) or magic != 2:
        raise _Defect(f"base {base}, length {length} for {len(batch)} bytes, magic {magic}")
    if crc32c.crc32c(batch[21:]) != crc:
        raise _Defect("checksum")
    if count < 1 or last != count - 1 or attributes & 0x20:
        raise _Defect(f"count {count}, last delta {last}, attributes {attributes}")
    payload = _decompress(attributes & 7, batch[_HEAD.size :])
    at = 0
    for index in range(count):
        at = _check_record(payload, at, index)
    if at != len(payload):
        raise _Defect(f"{len(payload) - at} bytes after the last record")


def _decompress(codec: int, data: bytes) -> bytes:
    try:
        if codec == GZIP:
            whole = b""
            while data:
                member = zlib.decompressobj(31)
                whole += member.decompress(data)
                if not member.eof:
                    raise _Defect("gzip ends early")
                data = member.unused_data
            return whole
        if codec == SNAPPY:
            return _decompress_snappy(data)
        if codec == LZ4:
            return bytes(lz4.frame.decompress(data))
        if codec == ZSTD:
            return zstandard.ZstdDecompressor().stream_reader(data, read_across_frames=True).read()
    except _Defect:
        raise
    except Exception as error:
        raise _Defect(f"codec {codec}: {error}") from error
    if codec:
        raise _Defect(f"codec {codec}")
    return data


def _decompress_snappy(data: bytes) -> bytes:
    if not data.startswith(_XERIAL):
        return bytes(snappy.uncompress(data))
    at, whole = 16, b""
    while at < len(data):
        (size,) = struct.unpack_from(">i", data, at)
        if size <= 0 or at + 4 + size > len(data):
            raise _Defect(f"a block claims {size} bytes")
        whole += snappy.uncompress(data[at + 4 : at + 4 + size])
        at += 4 + size
    return whole


def _number(data: bytes, at: int, end: int, bytes_max: int) -> tuple[int, int]:
    value = shift = 0
    for used in range(bytes_max):
        if at + used >= end:
            raise _Defect("a number ends outside its record")
        byte = data[at + used]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            if value >> (32 if bytes_max == 5 else 64):
                raise _Defect("a number is too wide")
            return (value >> 1) ^ -(value & 1), at + used + 1
        shift += 7
    raise _Defect("a number is too long")


def _check_record(data: bytes, at: int, index: int) -> int:
    size, at = _number(data, at, len(data), 5)
    end = at + size
    if size < 1 or end > len(data):
        raise _Defect(f"record {index} claims {size} bytes")
    if data[at] & 0x80:
        # The Python clients read the attributes as a varint, so they would continue with the next byte.
        raise _Defect(f"record {index} has attributes {data[at]:#04x}")
    _, at = _number(data, at + 1, end, 10)
    delta, at = _number(data, at, end, 5)
    if delta != index:
        raise _Defect(f"record {index} has the offset delta {delta}")
    for _ in range(2):
        at = _field(data, at, end)
    count, at = _number(data, at, end, 5)
    if not 0 <= count <= _HEADERS_MAX:
        raise _Defect(f"{count} headers")
    for _ in range(count):
        size, name_at = _number(data, at, end, 5)
        if size < 0 or name_at + size > end:
            raise _Defect(f"a header's name claims {size} bytes")
        data[name_at : name_at + size].decode()
        at = _field(data, name_at + size, end)
    if at != end:
        raise _Defect(f"record {index} ends {end - at} bytes early")
    return end


def _field(data: bytes, at: int, end: int) -> int:
    size, at = _number(data, at, end, 5)
    if not -1 <= size <= end - at:
        raise _Defect(f"a field claims {size} bytes")
    return at + max(size, 0)
