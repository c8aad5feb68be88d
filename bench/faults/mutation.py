"""Bytes that were right once, broken in the ways that lengths, counts, numbers and texts suffer from."""

from __future__ import annotations

import random

__all__ = ["bend", "mutated"]

_EDGES = (0, 1, 0x7F, 0x80, 0xFF, 0x7FFF, 0x8000, 0xFFFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF)


def bend(rng: random.Random, raw: bytearray, start: int = 0) -> None:
    """Once, in place; what lies before ``start`` stays as it is."""
    if len(raw) <= start:
        raw += rng.randbytes(4)
    at = rng.randrange(start, len(raw))
    kind = rng.randrange(6)
    if kind == 0:
        raw[at] ^= 1 << rng.randrange(8)
    elif kind == 1:
        raw[at] = rng.choice((0, 1, 0x7F, 0x80, 0xFF))
    elif kind == 2:
        size = rng.choice((2, 4))
        raw[at : at + size] = (rng.choice(_EDGES) % (1 << 8 * size)).to_bytes(size, "big")
    elif kind == 3:
        del raw[at : at + rng.randint(1, 8)]
    elif kind == 4:
        raw[at:at] = rng.randbytes(rng.randint(1, 8))
    else:
        del raw[at:]


def mutated(rng: random.Random, raw: bytes, start: int = 0) -> bytes:
    """One to five times."""
    bent = bytearray(raw)
    for _ in range(rng.choice((1, 1, 1, 2, 5))):
        bend(rng, bent, start)
    return bytes(bent)
