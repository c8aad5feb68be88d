"""Invalid batches with one known defect each, and decompression bombs of every codec."""

from __future__ import annotations

import random
import time
import zlib
from collections.abc import Callable
from functools import cache

import lz4.frame

from faults.protocol.codec import zigzag
from faults.protocol.strict_batch import GZIP, LZ4, NONE, SNAPPY, ZSTD, batch_with_header, compressed, record

__all__ = ["DEFECTS", "InvalidBatch", "bombs"]

_MIB = 1 << 20
_CORRUPT, _UNKNOWN_CODEC, _INVALID = 2, 76, 87

InvalidBatch = tuple[str, bytes, int]
"""The defect, the batch, and the expected error."""


def _now() -> int:
    return int(time.time() * 1000)


def _batch_of(records: list[bytes], codec: int) -> bytes:
    return batch_with_header(compressed(codec, b"".join(records)), len(records), _now(), codec=codec)


def _wrong_count(rng: random.Random, records: list[bytes], codec: int) -> InvalidBatch:
    count = rng.choice([0, -1, len(records) + 1, len(records) - 1 or 2, 2**31 - 1])
    payload = compressed(codec, b"".join(records))
    return (
        f"count {count} for {len(records)} records",
        batch_with_header(payload, count, _now(), codec=codec),
        _INVALID,
    )


def _wrong_last_delta(rng: random.Random, records: list[bytes], codec: int) -> InvalidBatch:
    last = len(records) - 1 + rng.choice([1, -1, 2**20, -(2**20)])
    payload = compressed(codec, b"".join(records))
    return (
        f"last delta {last}",
        batch_with_header(payload, len(records), _now(), codec=codec, last_delta=last),
        _INVALID,
    )


def _wrong_delta(rng: random.Random, records: list[bytes], codec: int) -> InvalidBatch:
    at = rng.randrange(len(records))
    records[at] = record(at + rng.choice([1, -1, 100, -100]), b"x")
    return (
        f"delta of record {at}",
        batch_with_header(compressed(codec, b"".join(records)), len(records), _now(), codec=codec),
        _INVALID,
    )


def _wrong_length(rng: random.Random, records: list[bytes], codec: int) -> InvalidBatch:
    at = rng.randrange(len(records))
    body = b"\0\0" + zigzag(at) + b"\1" + zigzag(rng.choice([5, 10**6, 2**31 - 1])) + b"abcd\0"
    records[at] = zigzag(len(body) + rng.choice([0, -3, 2**20])) + body
    return (
        f"length in record {at}",
        batch_with_header(compressed(codec, b"".join(records)), len(records), _now(), codec=codec),
        _INVALID,
    )


def _negative_length(rng: random.Random, records: list[bytes], codec: int) -> InvalidBatch:
    """A length of -1 means null. librdkafka waits forever on a length of -2."""
    at = rng.randrange(len(records))
    negative = zigzag(rng.choice([-2, -3, -100, -(2**31)]))
    rest = rng.choice(
        [
            negative + b"\2v\0",
            b"\1" + negative + b"\0",
            b"\1\2v\2\2h" + negative,
            b"\1\2v\2" + negative + b"\1",
        ]
    )
    body = b"\0\0" + zigzag(at) + rest
    records[at] = zigzag(len(body)) + body
    return (
        f"length below -1 in record {at}",
        batch_with_header(compressed(codec, b"".join(records)), len(records), _now(), codec=codec),
        _INVALID,
    )


def _wrong_headers(rng: random.Random, records: list[bytes], codec: int) -> InvalidBatch:
    at = rng.randrange(len(records))
    tail = rng.choice(
        [zigzag(2**31 - 1), zigzag(-1), zigzag(1), zigzag(1) + b"\1\1", zigzag(1) + b"\2\xff\1"]
    )
    body = b"\0\0" + zigzag(at) + b"\1\2v" + tail
    records[at] = zigzag(len(body)) + body
    return (
        f"headers of record {at}",
        batch_with_header(compressed(codec, b"".join(records)), len(records), _now(), codec=codec),
        _INVALID,
    )


def _too_many_headers(rng: random.Random, records: list[bytes], codec: int) -> InvalidBatch:
    payload = compressed(codec, record(0, b"v", headers=(b"h",) * 10_001))
    return "10,001 headers", batch_with_header(payload, 1, _now(), codec=codec), _INVALID


def _trailing_bytes(rng: random.Random, records: list[bytes], codec: int) -> InvalidBatch:
    payload = compressed(codec, b"".join(records) + rng.randbytes(rng.randint(1, 30)))
    return (
        "bytes after the last record",
        batch_with_header(payload, len(records), _now(), codec=codec),
        _INVALID,
    )


def _wrong_base(rng: random.Random, records: list[bytes], codec: int) -> InvalidBatch:
    base = rng.choice([1, -1, 2**62])
    payload = compressed(codec, b"".join(records))
    return (
        f"base offset {base}",
        batch_with_header(payload, len(records), _now(), codec=codec, base_offset=base),
        _INVALID,
    )


def _wrong_crc(rng: random.Random, records: list[bytes], codec: int) -> InvalidBatch:
    payload = compressed(codec, b"".join(records))
    return (
        "checksum",
        batch_with_header(payload, len(records), _now(), codec=codec, crc_error=rng.randint(1, 2**32 - 1)),
        _CORRUPT,
    )


def _unknown_codec(rng: random.Random, records: list[bytes], codec: int) -> InvalidBatch:
    return (
        "codec",
        batch_with_header(b"".join(records), len(records), _now(), codec=rng.choice([5, 6, 7])),
        _UNKNOWN_CODEC,
    )


def _snappy_with_huge_length(rng: random.Random, records: list[bytes], codec: int) -> InvalidBatch:
    payload = b"\xff\xff\xff\xff\x0f" + rng.randbytes(50)
    if rng.random() < 0.5:
        payload = b"\x82SNAPPY\0" + b"\0\0\0\1" * 2 + len(payload).to_bytes(4, "big") + payload
    return (
        "snappy with a stated length of 4 GiB",
        batch_with_header(payload, 1, _now(), codec=SNAPPY),
        _INVALID,
    )


def _random_payload(rng: random.Random, records: list[bytes], codec: int) -> InvalidBatch:
    chosen = rng.choice([GZIP, SNAPPY, LZ4, ZSTD])
    return (
        f"codec {chosen} with random bytes",
        batch_with_header(rng.randbytes(200), 1, _now(), codec=chosen),
        _INVALID,
    )


DEFECTS: tuple[Callable[[random.Random, list[bytes], int], InvalidBatch], ...] = (
    _wrong_count,
    _wrong_last_delta,
    _wrong_delta,
    _wrong_length,
    _negative_length,
    _wrong_headers,
    _too_many_headers,
    _trailing_bytes,
    _wrong_base,
    _wrong_crc,
    _unknown_codec,
    _snappy_with_huge_length,
    _random_payload,
)


@cache
def bombs() -> tuple[tuple[str, bytes], ...]:
    """Return one batch per codec. The zstd, gzip and lz4 batches decompress to 190 to 512 MiB of zeros, and the snappy
    batch to 20 MiB. The batch without a codec is not compressed.
    """
    now = _now()
    zeros = bytes(4 * _MIB)
    compressor = zlib.compressobj(6, zlib.DEFLATED, 31)
    gzip_data = b"".join(compressor.compress(zeros) for _ in range(48)) + compressor.flush()
    # Each block encodes 128 KiB of one byte in four bytes.
    blocks = 4096
    zstd_data = b"\x28\xb5\x2f\xfd\x00" + bytes([(17 - 10) << 3])
    zstd_data += b"".join(
        ((128 * 1024) << 3 | 1 << 1 | (index == blocks - 1)).to_bytes(3, "little") + b"\0"
        for index in range(blocks)
    )
    frame = lz4.frame.LZ4FrameCompressor(block_size=lz4.frame.BLOCKSIZE_MAX4MB, block_linked=False)
    lz4_frame = frame.begin() + b"".join(frame.compress(zeros) for _ in range(56)) + frame.flush()
    return (
        ("zstd", batch_with_header(zstd_data, 1, now, codec=ZSTD)),
        ("gzip", batch_with_header(gzip_data, 1, now, codec=GZIP)),
        ("lz4", batch_with_header(lz4_frame, 1, now, codec=LZ4)),
        ("snappy", batch_with_header(compressed(SNAPPY, bytes(20 * _MIB)), 1, now, codec=SNAPPY)),
        ("none", batch_with_header(bytes(100_000), 1, now, codec=NONE)),
    )
