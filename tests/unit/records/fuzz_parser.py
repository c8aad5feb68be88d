"""Feeds hostile records to a C parser, at the very end of readable memory: one byte too far is a SIGSEGV.

Run by the tests in a process of its own, since a crash of the parser would take the tests with it.
"""

from __future__ import annotations

import argparse
import ctypes
import mmap
import random

from headrace.records import RecordError, RecordLimits
from headrace.records._walk import walk
from headrace.records.parser import parse_facts, plain_header
from headrace.records.record import walk_records

LIMITS = RecordLimits(headers_max=50)
PAGES = 16
INTERESTING = [0, 1, 2, 3, 0x3F, 0x40, 0x7E, 0x7F, 0x80, 0x81, 0xFE, 0xFF]


class Cliff:
    """Memory whose end can be read, and whose next byte cannot."""

    def __init__(self) -> None:
        self.size = PAGES * mmap.PAGESIZE
        self.memory = mmap.mmap(-1, self.size + mmap.PAGESIZE)
        address = ctypes.addressof(ctypes.c_char.from_buffer(self.memory))
        libc = ctypes.CDLL(None, use_errno=True)
        libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
        if libc.mprotect(address + self.size, mmap.PAGESIZE, 0) != 0:
            raise OSError(ctypes.get_errno(), "mprotect")

    def place(self, octets: bytes, slack: int) -> memoryview:
        end = self.size - slack
        start = end - len(octets)
        self.memory[start : self.size] = octets + bytes(slack)
        return memoryview(self.memory)[start:end]


def varint(value: int) -> bytes:
    rest = value << 1 if value >= 0 else (-value << 1) - 1
    out = bytearray()
    while rest >= 0x80:
        out.append(rest & 0x7F | 0x80)
        rest >>= 7
    return bytes(out) + bytes([rest])


def blob(data: bytes | None) -> bytes:
    return varint(-1) if data is None else varint(len(data)) + data


def honest_record(rng: random.Random, index: int) -> bytes:
    headers = [
        (b"h" * rng.randrange(4), rng.choice([None, b"", b"vv"])) for _ in range(rng.choice([0, 0, 1, 3]))
    ]
    body = b"\x00" + varint(rng.choice([0, 5, 70, -9])) + varint(index)
    body += blob(rng.choice([None, b"", b"key"])) + blob(rng.choice([None, b"", b"v" * rng.randrange(100)]))
    body += varint(len(headers)) + b"".join(blob(name) + blob(value) for name, value in headers)
    return varint(len(body)) + body


def mutated(rng: random.Random, octets: bytes) -> bytes:
    out = bytearray(octets)
    for _ in range(rng.randrange(1, 4)):
        at = rng.randrange(len(out)) if rng.random() < 0.7 else max(0, len(out) - rng.randrange(1, 12))
        kind = rng.randrange(5)
        if kind == 0:
            out[at] ^= 1 << rng.randrange(8)
        elif kind == 1:
            out[at] = rng.choice(INTERESTING)
        elif kind == 2:
            out[at:at] = varint(rng.choice([-1, 2**31, 2**62, 2**63 - 1, 2**63 - 70, -(2**63), 10**6]))
        elif kind == 3:
            out[at : at + rng.randrange(1, 20)] = b""
        else:
            out[at:at] = bytes([rng.choice([0x80, 0x81, 0xFF])]) * rng.randrange(1, 12)
        if not out:
            out.append(0)
    return bytes(out)


def known_overread() -> bytes:
    """Two headers stated; the last byte of the first one's value size says "more to come"."""
    body = b"\x00" + varint(0) + varint(0) + blob(b"k") + blob(b"v") + varint(2) + blob(b"h") + b"\x81"
    return varint(len(body)) + body


def own_facts(view: memoryview, count: int) -> tuple[int, int, bool] | None:
    walked, _, *facts = walk(view, 61, count, LIMITS.headers_max)
    return tuple(facts) if walked == count else None


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--cases", type=int, required=True)
    parser.add_argument("--slack", type=int, required=True)
    parser.add_argument("--parser", choices=["aiokafka", "own"], default="aiokafka")
    parser.add_argument("--seed", type=int, default=20)
    parser.add_argument("--known", action="store_true", help="one case that is known to read past the end")
    arguments = parser.parse_args()
    rng = random.Random(arguments.seed)
    cliff = Cliff()
    proven = 0
    for _ in range(arguments.cases):
        count = rng.randrange(1, 12)
        payload = mutated(rng, b"".join(honest_record(rng, index) for index in range(count)))
        if arguments.known:
            count, payload = 1, known_overread()
        view = cliff.place(plain_header(len(payload), count) + payload, arguments.slack)
        facts = own_facts(view, count) if arguments.parser == "own" else parse_facts(view, 0, LIMITS)
        try:
            rule = walk_records(view, 61, len(view), range(count), LIMITS)
        except RecordError:
            rule = None
        if facts is not None or arguments.parser == "own":
            proven += facts is not None
            if facts != rule:
                raise AssertionError(
                    f"seed {arguments.seed}: parser says {facts}, walk {rule}: {payload.hex()}"
                )
    print(f"{arguments.cases} cases, {proven} proven valid")


if __name__ == "__main__":
    main()
