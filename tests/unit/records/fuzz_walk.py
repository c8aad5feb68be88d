"""Feeds hostile records to the C part, at the very end of readable memory: reading one byte too far is a SIGSEGV.

The tests run this module in a separate process, because a crash would also end the test process.
"""

from __future__ import annotations

import argparse
import ctypes
import errno
import mmap
import os
import random
from collections.abc import Callable
from typing import Any

from headrace.records import RecordError, RecordLimits
from headrace.records._walk import read, walk
from headrace.records.record import BareRecord, RecordsSummary, read_bare_records, validate_records

LIMITS = RecordLimits(headers_max=50)
PAGES = 16
WINDOW = 1 << 20
INTERESTING = [0, 1, 2, 3, 0x3F, 0x40, 0x7E, 0x7F, 0x80, 0x81, 0xFE, 0xFF]


class GuardedMemory:
    """Memory whose last byte can be read, and whose next byte cannot."""

    def __init__(self) -> None:
        self.size = PAGES * mmap.PAGESIZE
        self.memory = mmap.mmap(-1, self.size + mmap.PAGESIZE)
        address = ctypes.addressof(ctypes.c_char.from_buffer(self.memory))
        libc = ctypes.CDLL(None, use_errno=True)
        libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
        if libc.mprotect(address + self.size, mmap.PAGESIZE, 0) != 0:
            raise OSError(ctypes.get_errno(), "mprotect")
        self._check_guard(libc, address + self.size)

    def _check_guard(self, libc: ctypes.CDLL, end: int) -> None:
        """Check by system calls that the last byte is readable and the next one is not."""
        source, target = os.pipe()
        libc.write.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t]
        assert libc.write(target, end - 1, 1) == 1
        assert libc.write(target, end, 1) == -1
        assert ctypes.get_errno() == errno.EFAULT
        os.close(source)
        os.close(target)

    def put(self, raw: bytes) -> memoryview:
        start = self.size - len(raw)
        self.memory[start : self.size] = raw
        return memoryview(self.memory)[start : self.size]


def varint(value: int) -> bytes:
    rest = value << 1 if value >= 0 else (-value << 1) - 1
    out = bytearray()
    while rest >= 0x80:
        out.append(rest & 0x7F | 0x80)
        rest >>= 7
    return bytes(out) + bytes([rest])


def blob(data: bytes | None) -> bytes:
    return varint(-1) if data is None else varint(len(data)) + data


def valid_record(rng: random.Random, index: int) -> bytes:
    headers = [
        (b"h" * rng.randrange(4), rng.choice([None, b"", b"vv"])) for _ in range(rng.choice([0, 0, 1, 3]))
    ]
    body = b"\x00" + varint(rng.choice([0, 5, 70, -9])) + varint(index)
    body += blob(rng.choice([None, b"", b"key"])) + blob(rng.choice([None, b"", b"v" * rng.randrange(100)]))
    body += varint(len(headers)) + b"".join(blob(name) + blob(value) for name, value in headers)
    return varint(len(body)) + body


def mutated(rng: random.Random, raw: bytes) -> bytes:
    out = bytearray(raw)
    for _ in range(rng.randrange(1, 4)):
        at = rng.randrange(len(out)) if rng.random() < 0.7 else max(0, len(out) - rng.randrange(1, 12))
        kind = rng.randrange(5)
        if kind == 0:
            out[at] ^= 1 << rng.randrange(8)
        elif kind == 1:
            out[at] = rng.choice(INTERESTING)
        elif kind == 2:
            out[at:at] = varint(
                rng.choice([-1, -2, -(2**31), 2**31, 2**62, 2**63 - 1, 2**63 - 70, -(2**63), 10**6])
            )
        elif kind == 3:
            out[at : at + rng.randrange(1, 20)] = b""
        else:
            out[at:at] = bytes([rng.choice([0x80, 0x81, 0xFF])]) * rng.randrange(1, 12)
        if not out:
            out.append(0)
    return bytes(out)


def result_or_none(function: Callable[..., Any], *arguments: Any) -> Any:
    try:
        return function(*arguments)
    except RecordError:
        return None


def validated_by_c(view: memoryview, count: int) -> RecordsSummary | None:
    done, _, *facts = walk(view, 0, count, LIMITS.headers_max)
    return RecordsSummary(*facts) if done == count else None


def read_by_c(view: memoryview, count: int) -> tuple[list[BareRecord], int] | None:
    records_read, position = read(view, 0, count, WINDOW, BareRecord)
    return (records_read, position) if len(records_read) == count else None


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--cases", type=int, required=True)
    parser.add_argument("--seed", type=int, required=True)
    arguments = parser.parse_args()
    rng = random.Random(arguments.seed)
    guarded = GuardedMemory()
    proven = 0
    for _ in range(arguments.cases):
        count = rng.randrange(1, 12)
        payload = mutated(rng, b"".join(valid_record(rng, index) for index in range(count)))
        view = guarded.put(payload)
        facts = validated_by_c(view, count)
        rule = result_or_none(validate_records, view, 0, len(view), range(count), LIMITS)
        records_read = read_by_c(view, count)
        plain = result_or_none(read_bare_records, view, 0, range(count), WINDOW)
        proven += facts is not None
        if (facts, records_read) != (rule, plain):
            raise AssertionError(
                f"seed {arguments.seed}: C {facts} {records_read}, rule {rule} {plain}: {payload.hex()}"
            )
    print(f"{arguments.cases} cases, {proven} proven valid")


if __name__ == "__main__":
    main()
