"""The walk in C, where a compiler was at hand when the package was installed; elsewhere aiokafka's parser serves.

The C code (``_walk.c``) knows the rule but no words: it says how many records are right. The plain walk takes
over at the first that is not, and raises what is wrong with it. So a batch of a million records whose last one
lies costs hardly more than an honest one.
"""

from __future__ import annotations

from collections.abc import Callable

from headrace.records.header import Buffer
from headrace.records.limits import RecordLimits
from headrace.records.record import Facts, walk_records

__all__ = ["QuickWalk", "quick_walk"]

QuickWalk = Callable[[Buffer, int, int, RecordLimits], Facts]

quick_walk: QuickWalk | None = None

try:
    from headrace.records._walk import walk as _walk
except ImportError:
    pass
else:

    def _quick_walk(buf: Buffer, start: int, count: int, limits: RecordLimits) -> Facts:
        """Walk ``count`` records from ``start`` to exactly the end of ``buf``."""
        walked, position, delta_min, delta_max, has_null_key = _walk(buf, start, count, limits.headers_max)
        facts = Facts(delta_min, delta_max, has_null_key)
        if walked < count:
            facts |= walk_records(buf, position, len(buf), range(walked, count), limits)
        return facts

    quick_walk = _quick_walk
