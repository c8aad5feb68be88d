"""Mutations of valid bytes that break lengths, counts, numbers and texts."""

from __future__ import annotations

import random

__all__ = ["mutate_once", "mutated"]

_EDGES = (0, 1, 0x7F, 0x80, 0xFF, 0x7FFF, 0x8000, 0xFFFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF)


def mutate_once(rng: random.Random, raw: bytearray, start: int = 0) -> None:
    """Mutate once, in place. Bytes before ``start`` stay."""
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
    """Mutate one to five times."""
    result = bytearray(raw)
    for _ in range(rng.choice((1, 1, 1, 2, 5))):
        mutate_once(rng, result, start)
    return bytes(result)
