"""How the C library keeps the broker's memory.

A fetch reads megabytes into a buffer, sends it, and lets it go. By glibc's defaults such a buffer goes back to the
kernel at once, and the next one is new memory whose every page costs a fault: measured, two thirds of what a fetch
costs the system. So large buffers come from the heap, and up to 32 MiB of it are kept when they are free.
"""

from __future__ import annotations

import ctypes

__all__ = ["KEPT_BYTES", "keep_freed_memory"]

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
# The most that glibc takes for the second of them.
KEPT_BYTES = 32 << 20


def keep_freed_memory() -> bool:
    """Whether the C library does as it was told; one that cannot is left as it is."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return False
    return bool(mallopt(_M_TRIM_THRESHOLD, KEPT_BYTES) and mallopt(_M_MMAP_THRESHOLD, KEPT_BYTES))
