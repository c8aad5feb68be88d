"""Encodes and decodes record batches (format 2) for the oracle. This second implementation of the format shares nothing
with the code under test.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import crc32c

from faults.protocol.codec import unzigzag, zigzag

__all__ = ["Batch", "build_batch", "parse_batches"]

_HEAD = struct.Struct(">qiibIhiqqqhii")
_CRC_FROM = 21
_CODEC_BITS = 0x07
_TRANSACTIONAL_BIT = 0x10


@dataclass(frozen=True, slots=True)
class Batch:
    """``values`` is None if the caller does not need them, or if the batch is compressed (stock clients read those)."""

    base_offset: int
    count: int
    producer_id: int
    base_sequence: int
    values: tuple[bytes, ...] | None
    size: int

    @property
    def next_offset(self) -> int:
        return self.base_offset + self.count


def build_batch(
    values: Sequence[bytes],
    timestamp_ms: int,
    *,
    producer_id: int = -1,
    epoch: int = -1,
    sequence: int = -1,
    transactional: bool = False,
) -> bytes:
    body = bytearray()
    for index, value in enumerate(values):
        record = b"\x00\x00" + zigzag(index) + b"\x01" + zigzag(len(value)) + value + b"\x00"
        body += zigzag(len(record)) + record
    last = len(values) - 1
    checked = struct.pack(
        ">hiqqqhii",
        _TRANSACTIONAL_BIT if transactional else 0,
        last,
        timestamp_ms,
        timestamp_ms,
        producer_id,
        epoch,
        sequence,
        len(values),
    ) + bytes(body)
    return struct.pack(">qiibI", 0, 9 + len(checked), -1, 2, crc32c.crc32c(checked)) + checked


def parse_batches(data: bytes, *, with_values: bool = True) -> Iterator[Batch | str]:
    """Yield every batch in the bytes. If the bytes do not end with a whole batch, the last item is a string with the
    reason.
    """
    at = 0
    while at < len(data):
        if at + _HEAD.size > len(data):
            yield f"{len(data) - at} stray bytes at byte {at}"
            return
        head = _HEAD.unpack_from(data, at)
        base_offset, length, _, magic, crc, attributes, last_delta = head[:7]
        producer_id, _, base_sequence, count = head[9:]
        size = 12 + length
        if magic != 2 or size < _HEAD.size or at + size > len(data):
            yield f"no whole batch at byte {at}: magic {magic}, {size} bytes, of which {len(data) - at} exist"
            return
        if crc32c.crc32c(memoryview(data)[at + _CRC_FROM : at + size]) != crc:
            yield f"the batch at byte {at} (offset {base_offset}) fails its CRC"
            return
        if count != last_delta + 1:
            yield f"the batch at byte {at} has {count} records and a last delta of {last_delta}"
            return
        is_plain = with_values and not attributes & _CODEC_BITS
        values = tuple(_values(data, at + _HEAD.size, count)) if is_plain else None
        yield Batch(base_offset, count, producer_id, base_sequence, values, size)
        at += size


def _values(data: bytes, at: int, count: int) -> Iterator[bytes]:
    for _ in range(count):
        length, at = unzigzag(data, at)
        end = at + length
        at += 1
        for _ in range(2):
            _, at = unzigzag(data, at)
        key_size, at = unzigzag(data, at)
        at += max(key_size, 0)
        value_size, at = unzigzag(data, at)
        yield data[at : at + max(value_size, 0)]
        at = end
