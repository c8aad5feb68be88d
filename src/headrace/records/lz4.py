"""The LZ4 frame around a batch's records, as far as readers of Kafka's format differ about it.

    0  4  magic, little-endian
    4  1  flags: version (2 bits, 01), blocks are independent, blocks have checksums, size stated,
             content has a checksum, reserved, dictionary
    5  1  block size code, bits 4-6: 4 to 7 for 64 KiB to 4 MiB
    6  8  size of the content, if stated
       1  checksum of these
    then blocks: size in 4 bytes (top bit: stored as it is), data, checksum if there is one
    then 4 zero bytes, and the content's checksum if there is one

Java's reader takes one frame, of independent blocks, without a dictionary, and never looks behind it. Other
libraries take more: a batch that used that freedom would stop every Java consumer, so it is refused here.
"""

from __future__ import annotations

from struct import Struct
from struct import error as StructError

from headrace.records.errors import InvalidRecords

__all__ = ["check_lz4_frame"]

_HEADER = Struct("<IBB")
_U32 = Struct("<I")
_MAGIC = 0x184D2204

_VERSION_MASK = 0b1100_0011
_VERSION = 0b0100_0000
_INDEPENDENT = 0b0010_0000
_BLOCK_CHECKSUM = 0b0001_0000
_SIZE_STATED = 0b0000_1000
_CONTENT_CHECKSUM = 0b0000_0100
_CHECKSUM_BYTES = 4
_SIZE_BYTES = 8
_BLOCK_SIZE_MASK = 0x7FFF_FFFF


def check_lz4_frame(data: memoryview) -> int:
    """Check that this is one frame that all readers can read; return the most bytes it can unpack to."""
    try:
        return _check(data)
    except StructError:
        raise InvalidRecords(f"lz4 frame of {len(data)} bytes is cut short") from None


def _check(data: memoryview) -> int:
    magic, flags, block_code = _HEADER.unpack_from(data, 0)
    block_bytes_max = 1 << (8 + 2 * (block_code >> 4))
    if magic != _MAGIC or flags & _VERSION_MASK != _VERSION:
        raise InvalidRecords(
            f"lz4 data has magic {magic:#x} and flags {flags:#04x}: not a frame of version 1"
        )
    if not flags & _INDEPENDENT:
        raise InvalidRecords(
            "lz4 blocks depend on each other", hint="compress with independent blocks, as Kafka's clients do"
        )
    pos = _HEADER.size + (_SIZE_BYTES if flags & _SIZE_STATED else 0) + 1
    block_extra = _U32.size + (_CHECKSUM_BYTES if flags & _BLOCK_CHECKSUM else 0)
    unpacked_max = 0
    while size := _U32.unpack_from(data, pos)[0] & _BLOCK_SIZE_MASK:
        pos += block_extra + size
        unpacked_max += block_bytes_max
    pos += _U32.size + (_CHECKSUM_BYTES if flags & _CONTENT_CHECKSUM else 0)
    if pos != len(data):
        raise InvalidRecords(f"lz4 frame ends at byte {pos} of {len(data)}")
    return unpacked_max
