"""How much memory zstd's frames may make the decoder keep beside its output.

    0  4  magic
    4  1  descriptor: bits 6-7 width of the stated size, 5 single segment, 0-1 width of the dictionary id
    5  1  window: exponent (5 bits) and mantissa (3 bits); absent in a single segment, whose window is its size
       …  dictionary id, stated size

The decoder keeps a window of what it wrote last, and a frame of a few bytes may ask for 128 MiB of it. High
levels of compression really ask for that, so the window cannot be refused; but what is filled of it counts.
"""

from __future__ import annotations

__all__ = ["zstd_room"]

_MAGIC = b"\x28\xb5\x2f\xfd"
_SINGLE_SEGMENT = 0x20
_FREE_BYTES = 32 * 1024 * 1024


def zstd_room(data: memoryview, limit_bytes: int) -> int:
    """The most that these frames may unpack to, so that output and window stay within the limit and 32 MiB."""
    budget = limit_bytes + _FREE_BYTES
    # The window never holds more than was written, so half the budget is always safe.
    return min(limit_bytes, max(budget // 2, budget - _window_bytes_max(bytes(data))))


def _window_bytes_max(data: bytes) -> int:
    """The largest window of any frame. What only looks like a frame counts as well: that errs on the safe side."""
    largest = 0
    at = data.find(_MAGIC)
    while at >= 0:
        head = data[at + len(_MAGIC) : at + len(_MAGIC) + 2]
        if len(head) == 2:
            descriptor, window = head
            if descriptor & _SINGLE_SEGMENT:
                # Its window is the whole frame.
                return 1 << 41
            base = 1 << (10 + (window >> 3))
            largest = max(largest, base + base // 8 * (window & 7))
        at = data.find(_MAGIC, at + 1)
    return largest
