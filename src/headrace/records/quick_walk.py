"""Walking and reading records in C, where a compiler was at hand when the package was installed.

The C code (``_walk.c``) knows the rule but no words: it says how many records are right. The plain code in ``record``
takes over at the first that is not, and raises what is wrong with it. So a batch of a million records whose last one
lies costs hardly more than an honest one. Elsewhere the plain code does everything, safely and slowly.
"""

from __future__ import annotations

from collections.abc import Callable

from headrace.records.header import Buffer
from headrace.records.limits import RecordLimits
from headrace.records.record import BareRecord, Facts, read_bare_records, walk_records

__all__ = ["WALKS_IN_C", "QuickRead", "QuickWalk", "quick_read", "quick_walk"]

QuickWalk = Callable[[Buffer, int, int, RecordLimits], Facts]
QuickRead = Callable[[Buffer, int, range, int], tuple[list[BareRecord], int]]

quick_walk: QuickWalk | None = None
quick_read: QuickRead | None = None

try:
    from headrace.records import _walk
except ImportError:
    pass
else:

    def _quick_walk(buf: Buffer, start: int, count: int, limits: RecordLimits) -> Facts:
        """Walk ``count`` records from ``start`` to exactly the end of ``buf``."""
        walked, position, delta_min, delta_max, has_null_key = _walk.walk(
            buf, start, count, limits.headers_max
        )
        facts = Facts(delta_min, delta_max, has_null_key)
        if walked < count:
            facts |= walk_records(buf, position, len(buf), range(walked, count), limits)
        return facts

    def _quick_read(buf: Buffer, pos: int, indexes: range, bytes_max: int) -> tuple[list[BareRecord], int]:
        """As ``read_bare_records``."""
        found, behind = _walk.read(buf, pos, len(indexes), bytes_max, BareRecord)
        if len(found) < len(indexes) and behind - pos < bytes_max:
            rest, behind = read_bare_records(buf, behind, indexes[len(found) :], bytes_max)
            found += rest
        return found, behind

    quick_walk = _quick_walk
    quick_read = _quick_read

WALKS_IN_C = quick_walk is not None
