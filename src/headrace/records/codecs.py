"""Compression and bounded decompression of a batch's records: codecs 1 to 4 of the format.

Sizes in the compressed data are not trusted. The output buffer grows as needed, but never beyond the limit. If the
output would exceed the limit, decompression fails. So the output of a decompression bomb uses at most as much memory as
the limit. The other memory of a codec is small, except for zstd's window (``zstd_output_max``).

    1  gzip    one or more members
    2  snappy  raw, or in the block framing of Java's xerial library
    3  lz4     one frame of independent blocks; Java clients cannot read any other kind
    4  zstd    one or more frames
"""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct
from struct import error as StructError
from typing import Final, NamedTuple

import cramjam

from headrace.checksum import Buffer
from headrace.records.errors import InvalidRecords, RecordsTooLarge, UnknownCodec

__all__ = ["CODEC_NAMES", "NO_CODEC", "Unpacked", "check_lz4_frame", "pack", "unpack", "zstd_output_max"]

CODEC_NAMES: Final = ("none", "gzip", "snappy", "lz4", "zstd")
NO_CODEC, GZIP, SNAPPY, LZ4, ZSTD = range(5)

_FIRST_GUESS_RATIO = 4
_HINT_RATIO_MAX = 64
_GROWTH = 4
_GUESS_BYTES_MIN = 16 * 1024
_SNAPPY_RATIO_MAX = 32
_XERIAL_MAGIC = b"\x82SNAPPY\x00"
_XERIAL_HEADER = _XERIAL_MAGIC + b"\x00\x00\x00\x01" * 2
_XERIAL_BLOCK_BYTES = 32 * 1024
_BUFFER_FULL = "failed to write whole buffer"

_I32 = Struct(">i")
_U32_LITTLE = Struct("<I")


class Unpacked(NamedTuple):
    """Decompressed data: the first ``size`` bytes of the buffer. The rest of the buffer is unused."""

    buffer: bytearray
    size: int


def unpack(codec: int, data: Buffer, limit_bytes: int) -> Unpacked:
    view = memoryview(data)
    if codec == SNAPPY:
        return _unpack_snappy(view, limit_bytes)
    if codec == GZIP:
        hint = _U32_LITTLE.unpack(view[-4:])[0] if len(view) >= 4 else 0
        return _grow(cramjam.gzip.decompress_into, "gzip", view, hint, limit_bytes)
    if codec == LZ4:
        hint = check_lz4_frame(view)
        return _grow(cramjam.lz4.decompress_into, "lz4", view, hint, limit_bytes)
    if codec == ZSTD:
        output_max = zstd_output_max(view, limit_bytes)
        return _grow(cramjam.zstd.decompress_into, "zstd", view, 0, output_max)
    raise unknown_codec(codec)


def pack(codec: int, data: Buffer) -> bytes:
    if codec == NO_CODEC:
        return bytes(data)
    if codec == GZIP:
        return bytes(cramjam.gzip.compress(data))
    if codec == SNAPPY:
        return _pack_snappy(memoryview(data))
    if codec == LZ4:
        compressor = cramjam.lz4.Compressor(content_checksum=False, block_linked=False)
        compressor.compress(bytes(data))
        return bytes(compressor.finish())
    if codec == ZSTD:
        return bytes(cramjam.zstd.compress(data))
    raise unknown_codec(codec)


def unknown_codec(codec: int) -> UnknownCodec:
    return UnknownCodec(
        f"unknown compression codec {codec}",
        hint=f"use one of {', '.join(CODEC_NAMES)}",
    )


def _grow(
    decompress_into: Callable[[memoryview, memoryview], int],
    name: str,
    data: memoryview,
    hint: int,
    limit_bytes: int,
) -> Unpacked:
    guess = max(min(hint, len(data) * _HINT_RATIO_MAX), len(data) * _FIRST_GUESS_RATIO, _GUESS_BYTES_MIN)
    while True:
        output_max = min(guess, limit_bytes)
        buffer = bytearray(output_max)
        try:
            with memoryview(buffer) as output:
                size = decompress_into(data, output)
        except cramjam.DecompressionError as error:
            if _BUFFER_FULL not in str(error):
                raise InvalidRecords(f"invalid {name} data: {error}") from None
            if output_max >= limit_bytes:
                raise records_too_large(name, len(data), limit_bytes) from None
            del buffer  # Free this buffer before allocating the next one.
            guess = output_max * _GROWTH
            continue
        return Unpacked(buffer, size)


def records_too_large(name: str, packed: int, limit_bytes: int) -> RecordsTooLarge:
    return RecordsTooLarge(
        f"{packed} bytes of {name} data decompress to more than {limit_bytes} bytes",
        hint="send smaller batches",
    )


def _unpack_snappy(data: memoryview, limit_bytes: int) -> Unpacked:
    blocks = _xerial_blocks(data) if data[: len(_XERIAL_MAGIC)] == _XERIAL_MAGIC else [data]
    sizes = []
    for block in blocks:
        try:
            size = cramjam.snappy.decompress_raw_len(block)
        except cramjam.DecompressionError as error:
            raise InvalidRecords(f"invalid snappy data: {error}") from None
        if size > len(block) * _SNAPPY_RATIO_MAX:
            raise InvalidRecords(
                f"{len(block)} bytes of snappy data cannot decompress to the declared {size} bytes"
            )
        sizes.append(size)
    total = sum(sizes)
    if total > limit_bytes:
        raise records_too_large("snappy", len(data), limit_bytes)
    buffer = bytearray(total)
    position = 0
    with memoryview(buffer) as view:
        for block, size in zip(blocks, sizes, strict=True):
            with view[position : position + size] as output:
                try:
                    cramjam.snappy.decompress_raw_into(block, output)
                except cramjam.DecompressionError as error:
                    raise InvalidRecords(f"invalid snappy data: {error}") from None
            position += size
    return Unpacked(buffer, total)


def _xerial_blocks(data: memoryview) -> list[memoryview]:
    blocks = []
    position = len(_XERIAL_HEADER)
    end = len(data)
    while position < end:
        if end - position < _I32.size:
            raise InvalidRecords(f"the snappy block at byte {position} is shorter than its length field")
        (size,) = _I32.unpack_from(data, position)
        position += _I32.size
        if not 0 < size <= end - position:
            raise InvalidRecords(
                f"the snappy block at byte {position} declares {size} bytes, but {end - position} bytes remain"
            )
        blocks.append(data[position : position + size])
        position += size
    return blocks


def _pack_snappy(data: memoryview) -> bytes:
    parts = [_XERIAL_HEADER]
    for start in range(0, len(data), _XERIAL_BLOCK_BYTES):
        block = bytes(cramjam.snappy.compress_raw(data[start : start + _XERIAL_BLOCK_BYTES]))
        parts += (_I32.pack(len(block)), block)
    return b"".join(parts)


_LZ4_HEADER = Struct("<IBB")
_LZ4_MAGIC = 0x184D2204

_VERSION_MASK = 0b1100_0011
_VERSION = 0b0100_0000
_INDEPENDENT = 0b0010_0000
_BLOCK_CHECKSUM = 0b0001_0000
_SIZE_PRESENT = 0b0000_1000
_CONTENT_CHECKSUM = 0b0000_0100
_CHECKSUM_BYTES = 4
_SIZE_BYTES = 8
_BLOCK_SIZE_MASK = 0x7FFF_FFFF


def check_lz4_frame(data: memoryview) -> int:
    """Check that the data is one frame that all clients can read; returns the maximum size after decompression.

        0  4  magic, little-endian
        4  1  flags: version (2 bits, 01), blocks are independent, blocks have checksums, content size present,
                 content has a checksum, reserved, dictionary
        5  1  block size code, bits 4-6: 4 to 7 for 64 KiB to 4 MiB
        6  8  content size, if the flag is set
           1  checksum of the fields above except the magic
        then blocks: size in 4 bytes (top bit: stored uncompressed), data, checksum if the flag is set
        then 4 zero bytes, and the checksum of the content if the flag is set

    Java's reader accepts exactly one frame of independent blocks without a dictionary, and ignores everything after it.
    Other libraries accept more, but a batch that uses it would stop every Java consumer.
    """
    try:
        return _lz4_bytes_max(data)
    except StructError:
        raise InvalidRecords(f"the lz4 frame of {len(data)} bytes is incomplete") from None


def _lz4_bytes_max(data: memoryview) -> int:
    magic, flags, block_code = _LZ4_HEADER.unpack_from(data, 0)
    block_bytes_max = 1 << (8 + 2 * (block_code >> 4))
    if magic != _LZ4_MAGIC or flags & _VERSION_MASK != _VERSION:
        raise InvalidRecords(
            f"lz4 data with magic {magic:#x} and flags {flags:#04x} is not a frame of version 1"
        )
    if not flags & _INDEPENDENT:
        raise InvalidRecords(
            "the lz4 blocks depend on each other",
            hint="compress with independent blocks, as Kafka clients do",
        )
    pos = _LZ4_HEADER.size + (_SIZE_BYTES if flags & _SIZE_PRESENT else 0) + 1
    block_extra = _U32_LITTLE.size + (_CHECKSUM_BYTES if flags & _BLOCK_CHECKSUM else 0)
    unpacked_max = 0
    while size := _U32_LITTLE.unpack_from(data, pos)[0] & _BLOCK_SIZE_MASK:
        pos += block_extra + size
        unpacked_max += block_bytes_max
    pos += _U32_LITTLE.size + (_CHECKSUM_BYTES if flags & _CONTENT_CHECKSUM else 0)
    if pos != len(data):
        raise InvalidRecords(f"the lz4 frame ends at byte {pos}, but the data has {len(data)} bytes")
    return unpacked_max


_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
_SINGLE_SEGMENT = 0x20
_FREE_BYTES = 32 * 1024 * 1024


def zstd_output_max(data: memoryview, limit_bytes: int) -> int:
    """Return the maximum size to which these frames may decompress. Output and window together are limited to
    ``limit_bytes`` plus 32 MiB.

        0  4  magic
        4  1  descriptor: bits 6-7 width of the content size, 5 single segment, 0-1 width of the dictionary id
        5  1  window: exponent (5 bits) and mantissa (3 bits); missing in a single segment, whose window is its size
           …  dictionary id, content size

    The decoder retains a window of its last output, and a frame of a few bytes can request a window of 128 MiB. High
    compression levels need large windows, so this code accepts large windows, but counts the filled part of the window.
    """
    budget = limit_bytes + _FREE_BYTES
    # The window never contains more than the output, so half the budget is always safe.
    return min(limit_bytes, max(budget // 2, budget - _window_bytes_max(bytes(data))))


def _window_bytes_max(data: bytes) -> int:
    """Return the largest window of any frame. Bytes that only resemble a frame count too, which can only make the
    result too large.
    """
    largest = 0
    at = data.find(_ZSTD_MAGIC)
    while at >= 0:
        head = data[at + len(_ZSTD_MAGIC) : at + len(_ZSTD_MAGIC) + 2]
        if len(head) == 2:
            descriptor, window = head
            if descriptor & _SINGLE_SEGMENT:
                # The window of a single segment is the whole frame.
                return 1 << 41
            base = 1 << (10 + (window >> 3))
            largest = max(largest, base + base // 8 * (window & 7))
        at = data.find(_ZSTD_MAGIC, at + 1)
    return largest
