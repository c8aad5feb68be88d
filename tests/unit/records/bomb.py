"""Validates one decompression bomb, in its own process; prints the result and the growth of the process in MiB."""

from __future__ import annotations

import sys

import cramjam
from crc32c import crc32c

from headrace.records import RecordError, RecordLimits, check_batch, open_batch, record
from headrace.records import batch as batch_module
from headrace.records.batch import HEADER
from headrace.records.codecs import pack

MIB = 1024 * 1024
GZIP, SNAPPY, LZ4, ZSTD = 1, 2, 3, 4


def zstd_of_runs(blocks: int, window_log: int) -> bytes:
    """A zstd frame of blocks that each encode 128 KiB of one byte in four bytes: a ratio of 32,768."""
    out = [b"\x28\xb5\x2f\xfd\x00", bytes([(window_log - 10) << 3])]
    for index in range(blocks):
        last = index == blocks - 1
        out.append(((128 * 1024) << 3 | 1 << 1 | last).to_bytes(3, "little") + b"\x00")
    return b"".join(out)


def batch(codec: int, payload: bytes, count: int) -> bytes:
    head = HEADER.pack(0, 49 + len(payload), 0, 2, 0, codec, count - 1, 0, 0, -1, -1, -1, count)
    crc = crc32c(payload, crc32c(head[21:]))
    return head[:17] + crc.to_bytes(4, "big") + head[21:] + payload


def repeated(compress_part, size: int) -> bytes:
    """Compress ``size`` zero bytes without holding all of them in memory."""
    part = 4 * MIB
    return compress_part(bytes(part)) * (size // part)


def varint(value: int) -> bytes:
    rest = value << 1
    out = bytearray()
    while rest >= 0x80:
        out.append(rest & 0x7F | 0x80)
        rest >>= 7
    return bytes(out) + bytes([rest])


def many_headers(count: int) -> bytes:
    """One record with only empty headers: two bytes each, which would become an object of 60 bytes each."""
    body = b"\x00\x00\x00\x01\x01" + varint(count) + bytes(2 * count)
    return varint(len(body)) + body


def records_of_headers(count: int, headers: int) -> bytes:
    """Many records with the maximum number of headers: 8 MB of zeros, which would become 250 MB of objects."""
    out = bytearray()
    for index in range(count):
        body = b"\x00\x00" + varint(index) + b"\x01\x01" + varint(headers) + bytes(2 * headers)
        out += varint(len(body)) + body
    return bytes(out)


def tiny_records(count: int) -> bytes:
    out = bytearray()
    for index in range(count):
        delta = varint(index)
        out += varint(5 + len(delta)) + b"\x00\x00" + delta + b"\x01\x01\x00"
    return bytes(out)


def make(kind: str) -> bytes:
    match kind:
        case "zstd":
            return batch(ZSTD, zstd_of_runs(250_000, 17), 1)
        case "zstd-window":
            return batch(ZSTD, zstd_of_runs(250_000, 27), 1)
        case "zstd-second-window":
            return batch(ZSTD, zstd_of_runs(1, 17) + zstd_of_runs(2_000, 27), 1)
        case "gzip":
            return batch(GZIP, repeated(lambda b: bytes(cramjam.gzip.compress(b)), 2048 * MIB), 1)
        case "lz4":
            frame = bytes(pack(LZ4, bytes(4 * MIB)))
            return batch(LZ4, frame[:7] + frame[7:-4] * 256 + frame[-4:], 1)
        case "snappy":
            block = bytes(cramjam.snappy.compress_raw(bytes(4 * MIB)))
            framed = len(block).to_bytes(4, "big") + block
            return batch(SNAPPY, b"\x82SNAPPY\x00\x00\x00\x00\x01\x00\x00\x00\x01" + framed * 32, 1)
        case "snappy-stated":
            return batch(SNAPPY, b"\xff\xff\xff\xff\x0f" + bytes(100), 1)
        case "headers":
            return batch(ZSTD, bytes(cramjam.zstd.compress(many_headers(20 * MIB))), 1)
        case "headers-in-a-window":
            return batch(ZSTD, bytes(cramjam.zstd.compress(many_headers(MIB // 2 - 10))), 1)
        case "headers-in-many":
            packed = bytes(cramjam.zstd.compress(records_of_headers(400, 10_000)))
            return batch(ZSTD, packed, 400)
        case "tiny":
            return batch(ZSTD, bytes(cramjam.zstd.compress(tiny_records(300_000))), 300_000)
        case "count":
            return batch(ZSTD, bytes(cramjam.zstd.compress(bytes(1000))), 2**31 - 1)
    raise ValueError(kind)


def peak_mib() -> float:
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) / 1024 for line in status if line.startswith("VmHWM"))


def count_stored(octets: bytes, limits: RecordLimits) -> int:
    return sum(1 for _ in open_batch(octets, limits).records)


def main() -> None:
    kind, limit_mib = sys.argv[1], int(sys.argv[2])
    octets = make(kind)
    with open("/proc/self/clear_refs", "w") as clear:
        clear.write("5")
    before = peak_mib()
    judge = count_stored if "stored" in sys.argv[3:] else check_batch
    if "plain" in sys.argv[3:]:
        batch_module.fast_validate = record.fast_read = None
    try:
        ended = str(type(judge(octets, RecordLimits(unpacked_bytes_max=limit_mib * MIB))).__name__)
    except RecordError as error:
        ended = type(error).__name__
    print(ended, len(octets), round(peak_mib() - before, 1))


if __name__ == "__main__":
    main()
