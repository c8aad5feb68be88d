"""Times in buckets that grow by a tenth, so that percentiles cost a fixed amount of memory however long it runs."""

from __future__ import annotations

import math

__all__ = ["Latencies"]

_SMALLEST_MS = 0.01
_GROWTH = 1.1
_BUCKETS = 200


class Latencies:
    def __init__(self) -> None:
        self._counts = [0] * _BUCKETS
        self.total = 0

    def add(self, milliseconds: float) -> None:
        index = 0
        if milliseconds > _SMALLEST_MS:
            index = min(_BUCKETS - 1, int(math.log(milliseconds / _SMALLEST_MS, _GROWTH)) + 1)
        self._counts[index] += 1
        self.total += 1

    def percentile(self, share: float) -> float | None:
        """The upper edge of the bucket that the share falls into, at most a tenth too high; None without data."""
        if not self.total:
            return None
        wanted = math.ceil(self.total * share)
        seen = 0
        for index, count in enumerate(self._counts):
            seen += count
            if seen >= wanted:
                return _SMALLEST_MS * _GROWTH**index
        return None
