"""Record batches built without the code under test: aiokafka's builder creates them, ``bent`` makes them invalid."""

from __future__ import annotations

import struct

import crc32c
from aiokafka.record.default_records import DefaultRecordBatchBuilder

from tests.support.times import NOON_MS

__all__ = ["CODECS", "batch", "bent"]

CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]


def batch(
    count: int = 3,
    *,
    codec: str = "none",
    first_ms: int = NOON_MS,
    step_ms: int = 1,
    producer: tuple[int, int, int] = (-1, -1, -1),
    value: bytes = b"value",
    key: bytes | None = b"key",
    transactional: bool = False,
) -> bytes:
    """A batch of that many records; ``producer`` is its id, epoch and first sequence."""
    builder = DefaultRecordBatchBuilder(2, CODECS.index(codec), int(transactional), *producer, 1 << 30)
    for index in range(count):
        builder.append(index, first_ms + index * step_ms, key, value, [])
    return bytes(builder.build())


def bent(
    original: bytes,
    *,
    base_offset: int | None = None,
    magic: int | None = None,
    attributes: int | None = None,
    last_offset_delta: int | None = None,
    count: int | None = None,
    good_crc: bool = True,
) -> bytes:
    """Return the batch with header fields overwritten, and with a correct checksum unless a wrong one is required."""
    changed = bytearray(original)
    if base_offset is not None:
        struct.pack_into(">q", changed, 0, base_offset)
    if magic is not None:
        changed[16] = magic
    if attributes is not None:
        struct.pack_into(">h", changed, 21, attributes)
    if last_offset_delta is not None:
        struct.pack_into(">i", changed, 23, last_offset_delta)
    if count is not None:
        struct.pack_into(">i", changed, 57, count)
    checksum = crc32c.crc32c(bytes(changed[21:]))
    struct.pack_into(">I", changed, 17, checksum if good_crc else checksum ^ 1)
    return bytes(changed)
