"""Batches that lie, each known for what it is: counts, deltas, lengths, codecs, and bombs of every codec."""

from __future__ import annotations

import random
import time
import zlib
from collections.abc import Callable
from functools import cache

import lz4.frame

from bench.faults.strict import GZIP, LZ4, NONE, SNAPPY, ZSTD, packed, record, sealed
from bench.faults.varints import zigzag

__all__ = ["LIES", "Lie", "bombs"]

_MIB = 1 << 20
_CORRUPT, _UNKNOWN_CODEC, _INVALID = 2, 76, 87

Lie = tuple[str, bytes, int]
"""What it is, the batch, and the error that is due."""


def _now() -> int:
    return int(time.time() * 1000)


def _around(records: list[bytes], codec: int) -> bytes:
    return sealed(packed(codec, b"".join(records)), len(records), _now(), codec=codec)


def _wrong_count(rng: random.Random, records: list[bytes], codec: int) -> Lie:
    count = rng.choice([0, -1, len(records) + 1, len(records) - 1 or 2, 2**31 - 1])
    payload = packed(codec, b"".join(records))
    return f"count {count} for {len(records)}", sealed(payload, count, _now(), codec=codec), _INVALID


def _wrong_last_delta(rng: random.Random, records: list[bytes], codec: int) -> Lie:
    last = len(records) - 1 + rng.choice([1, -1, 2**20, -(2**20)])
    payload = packed(codec, b"".join(records))
    return f"last delta {last}", sealed(payload, len(records), _now(), codec=codec, last_delta=last), _INVALID


def _wrong_delta(rng: random.Random, records: list[bytes], codec: int) -> Lie:
    at = rng.randrange(len(records))
    records[at] = record(at + rng.choice([1, -1, 100, -100]), b"x")
    return (
        f"delta of record {at}",
        sealed(packed(codec, b"".join(records)), len(records), _now(), codec=codec),
        _INVALID,
    )


def _wrong_length(rng: random.Random, records: list[bytes], codec: int) -> Lie:
    at = rng.randrange(len(records))
    body = b"\0\0" + zigzag(at) + b"\1" + zigzag(rng.choice([5, 10**6, 2**31 - 1])) + b"abcd\0"
    records[at] = zigzag(len(body) + rng.choice([0, -3, 2**20])) + body
    return (
        f"length in record {at}",
        sealed(packed(codec, b"".join(records)), len(records), _now(), codec=codec),
        _INVALID,
    )


def _below_null(rng: random.Random, records: list[bytes], codec: int) -> Lie:
    """-1 is null. To librdkafka, -2 is a length that it waits for without end."""
    at = rng.randrange(len(records))
    below = zigzag(rng.choice([-2, -3, -100, -(2**31)]))
    rest = rng.choice(
        [below + b"\2v\0", b"\1" + below + b"\0", b"\1\2v\2\2h" + below, b"\1\2v\2" + below + b"\1"]
    )
    body = b"\0\0" + zigzag(at) + rest
    records[at] = zigzag(len(body)) + body
    return (
        f"length below null in record {at}",
        sealed(packed(codec, b"".join(records)), len(records), _now(), codec=codec),
        _INVALID,
    )


def _wrong_headers(rng: random.Random, records: list[bytes], codec: int) -> Lie:
    at = rng.randrange(len(records))
    tail = rng.choice(
        [zigzag(2**31 - 1), zigzag(-1), zigzag(1), zigzag(1) + b"\1\1", zigzag(1) + b"\2\xff\1"]
    )
    body = b"\0\0" + zigzag(at) + b"\1\2v" + tail
    records[at] = zigzag(len(body)) + body
    return (
        f"headers of record {at}",
        sealed(packed(codec, b"".join(records)), len(records), _now(), codec=codec),
        _INVALID,
    )


def _too_many_headers(rng: random.Random, records: list[bytes], codec: int) -> Lie:
    payload = packed(codec, record(0, b"v", headers=(b"h",) * 10_001))
    return "10,001 headers", sealed(payload, 1, _now(), codec=codec), _INVALID


def _more_behind(rng: random.Random, records: list[bytes], codec: int) -> Lie:
    payload = packed(codec, b"".join(records) + rng.randbytes(rng.randint(1, 30)))
    return "bytes behind the last record", sealed(payload, len(records), _now(), codec=codec), _INVALID


def _wrong_base(rng: random.Random, records: list[bytes], codec: int) -> Lie:
    base = rng.choice([1, -1, 2**62])
    payload = packed(codec, b"".join(records))
    return (
        f"base offset {base}",
        sealed(payload, len(records), _now(), codec=codec, base_offset=base),
        _INVALID,
    )


def _wrong_crc(rng: random.Random, records: list[bytes], codec: int) -> Lie:
    payload = packed(codec, b"".join(records))
    return (
        "checksum",
        sealed(payload, len(records), _now(), codec=codec, crc_off=rng.randint(1, 2**32 - 1)),
        _CORRUPT,
    )


def _unknown_codec(rng: random.Random, records: list[bytes], codec: int) -> Lie:
    return (
        "codec",
        sealed(b"".join(records), len(records), _now(), codec=rng.choice([5, 6, 7])),
        _UNKNOWN_CODEC,
    )


def _stated_snappy(rng: random.Random, records: list[bytes], codec: int) -> Lie:
    payload = b"\xff\xff\xff\xff\x0f" + rng.randbytes(50)
    if rng.random() < 0.5:
        payload = b"\x82SNAPPY\0" + b"\0\0\0\1" * 2 + len(payload).to_bytes(4, "big") + payload
    return "snappy of 4 GiB", sealed(payload, 1, _now(), codec=SNAPPY), _INVALID


def _not_packed(rng: random.Random, records: list[bytes], codec: int) -> Lie:
    chosen = rng.choice([GZIP, SNAPPY, LZ4, ZSTD])
    return f"codec {chosen} of chance", sealed(rng.randbytes(200), 1, _now(), codec=chosen), _INVALID


LIES: tuple[Callable[[random.Random, list[bytes], int], Lie], ...] = (
    _wrong_count,
    _wrong_last_delta,
    _wrong_delta,
    _wrong_length,
    _below_null,
    _wrong_headers,
    _too_many_headers,
    _more_behind,
    _wrong_base,
    _wrong_crc,
    _unknown_codec,
    _stated_snappy,
    _not_packed,
)


@cache
def bombs() -> tuple[tuple[str, bytes], ...]:
    """Each unpacks to 190 to 512 MiB of zeros."""
    now = _now()
    zeros = bytes(4 * _MIB)
    gzip = zlib.compressobj(6, zlib.DEFLATED, 31)
    gzipped = b"".join(gzip.compress(zeros) for _ in range(48)) + gzip.flush()
    # Blocks that each say "128 KiB of this byte" in four bytes.
    blocks = 4096
    zstd = b"\x28\xb5\x2f\xfd\x00" + bytes([(17 - 10) << 3])
    zstd += b"".join(
        ((128 * 1024) << 3 | 1 << 1 | (index == blocks - 1)).to_bytes(3, "little") + b"\0"
        for index in range(blocks)
    )
    frame = lz4.frame.LZ4FrameCompressor(block_size=lz4.frame.BLOCKSIZE_MAX4MB, block_linked=False)
    squeezed = frame.begin() + b"".join(frame.compress(zeros) for _ in range(56)) + frame.flush()
    return (
        ("zstd", sealed(zstd, 1, now, codec=ZSTD)),
        ("gzip", sealed(gzipped, 1, now, codec=GZIP)),
        ("lz4", sealed(squeezed, 1, now, codec=LZ4)),
        ("snappy", sealed(packed(SNAPPY, bytes(20 * _MIB)), 1, now, codec=SNAPPY)),
        ("none", sealed(bytes(100_000), 1, now, codec=NONE)),
    )
