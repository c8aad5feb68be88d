"""Packing and, within bounds, unpacking the records of a batch: codecs 1 to 4 of the format.

Stated sizes are hints from a stranger. Output goes into a buffer of our own size, which grows while the data
really fills it and never past the limit; a codec that would write more fails there. So a bomb costs the limit,
not its claim. What a codec keeps beside the output is small, but for zstd's window: see ``zstd``.

    1  gzip    one or more members
    2  snappy  raw, or in the block framing of Java's xerial library
    3  lz4     one frame of independent blocks, the only kind that Java's clients can read
    4  zstd    one or more frames
"""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct
from typing import Final, NamedTuple

import cramjam

from headrace.records.errors import InvalidRecords, RecordsTooLarge, UnknownCodec
from headrace.records.header import Buffer
from headrace.records.lz4 import check_lz4_frame
from headrace.records.zstd import zstd_room

__all__ = ["CODEC_NAMES", "NO_CODEC", "Unpacked", "pack", "unpack"]

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
_NO_ROOM = "failed to write whole buffer"

_I32 = Struct(">i")
_U32_LITTLE = Struct("<I")


class Unpacked(NamedTuple):
    """The bytes at the start of the buffer; what lies behind them means nothing."""

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
        room = zstd_room(view, limit_bytes)
        return _grow(cramjam.zstd.decompress_into, "zstd", view, 0, room)
    raise unknown(codec)


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
    raise unknown(codec)


def unknown(codec: int) -> UnknownCodec:
    return UnknownCodec(
        f"compression codec {codec} is not defined",
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
        room = min(guess, limit_bytes)
        buffer = bytearray(room)
        try:
            with memoryview(buffer) as output:
                size = decompress_into(data, output)
        except cramjam.DecompressionError as error:
            if _NO_ROOM not in str(error):
                raise InvalidRecords(f"{name} data does not unpack: {error}") from None
            if room >= limit_bytes:
                raise too_large(name, len(data), limit_bytes) from None
            del buffer  # before the larger one is made, so that the two never add up
            guess = room * _GROWTH
            continue
        return Unpacked(buffer, size)


def too_large(name: str, packed: int, limit_bytes: int) -> RecordsTooLarge:
    return RecordsTooLarge(
        f"{packed} bytes of {name} unpack to more than the limit of {limit_bytes}",
        hint="send smaller batches",
    )


def _unpack_snappy(data: memoryview, limit_bytes: int) -> Unpacked:
    blocks = _xerial_blocks(data) if data[: len(_XERIAL_MAGIC)] == _XERIAL_MAGIC else [data]
    sizes = []
    for block in blocks:
        try:
            size = cramjam.snappy.decompress_raw_len(block)
        except cramjam.DecompressionError as error:
            raise InvalidRecords(f"snappy data does not unpack: {error}") from None
        if size > len(block) * _SNAPPY_RATIO_MAX:
            raise InvalidRecords(f"{len(block)} bytes of snappy cannot hold the {size} that they state")
        sizes.append(size)
    total = sum(sizes)
    if total > limit_bytes:
        raise too_large("snappy", len(data), limit_bytes)
    buffer = bytearray(total)
    position = 0
    with memoryview(buffer) as view:
        for block, size in zip(blocks, sizes, strict=True):
            with view[position : position + size] as output:
                try:
                    cramjam.snappy.decompress_raw_into(block, output)
                except cramjam.DecompressionError as error:
                    raise InvalidRecords(f"snappy data does not unpack: {error}") from None
            position += size
    return Unpacked(buffer, total)


def _xerial_blocks(data: memoryview) -> list[memoryview]:
    blocks = []
    position = len(_XERIAL_HEADER)
    end = len(data)
    while position < end:
        if end - position < _I32.size:
            raise InvalidRecords(f"snappy block at byte {position} has no room for its length")
        (size,) = _I32.unpack_from(data, position)
        position += _I32.size
        if not 0 < size <= end - position:
            raise InvalidRecords(f"snappy block at byte {position} states {size} bytes of {end - position}")
        blocks.append(data[position : position + size])
        position += size
    return blocks


def _pack_snappy(data: memoryview) -> bytes:
    parts = [_XERIAL_HEADER]
    for start in range(0, len(data), _XERIAL_BLOCK_BYTES):
        block = bytes(cramjam.snappy.compress_raw(data[start : start + _XERIAL_BLOCK_BYTES]))
        parts += (_I32.pack(len(block)), block)
    return b"".join(parts)
