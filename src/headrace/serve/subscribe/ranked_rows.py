"""The first rows of a query in sort order, plus some rows after them as spares. If one of the first rows leaves, a
spare row takes its place.

The horizon is the sort value of the last known row. All rows up to the horizon are known, and rows after it are
ignored. When rows leave, the number of known rows shrinks, and ``has_first`` returns whether enough are known. If all
rows of the query are known, no horizon is set until rows must be dropped because of the limits.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Iterable
from itertools import islice
from typing import Any, NamedTuple

from headrace.stores.rows import Row

__all__ = ["RankedRow", "RankedRows"]

_OVERHEAD_BYTES = 300
"""Estimated memory of a row in addition to its key and JSON."""


class RankedRow(NamedTuple):
    key: bytes
    values: Row
    row: bytes
    """The row as JSON, as sent in messages."""


class RankedRows:
    """``rows`` are the first rows by ``sort_key``, or all rows if ``is_all``. Stores at most ``rows_max`` rows and
    ``bytes_max`` bytes.
    """

    def __init__(
        self,
        sort_key: Callable[[Row], Any],
        rows: Iterable[RankedRow],
        *,
        is_all: bool,
        rows_max: int,
        bytes_max: int,
    ) -> None:
        self._sort_key = sort_key
        self._rows_max = rows_max
        self._bytes_max = bytes_max
        self._rows: dict[bytes, tuple[Any, bytes]] = {}
        self._order: list[tuple[Any, bytes]] = []
        self._horizon: tuple[Any, ...] = ()
        """The horizon as a tuple of one value; empty if all rows are known."""
        self.size_bytes = 0
        for ranked in rows:
            self.put(ranked)
        if not is_all:
            self._cut(len(self._order))
        self._enforce_limits()

    def __len__(self) -> int:
        return len(self._order)

    def has_first(self, count: int) -> bool:
        """Return whether the first ``count`` rows are known, or all rows if the query has fewer."""
        return not self._horizon or len(self._order) >= count

    def first(self, count: int) -> dict[bytes, bytes]:
        """Return the first ``count`` rows by key, in sort order."""
        return {key: self._rows[key][1] for _, key in islice(self._order, count)}

    def put(self, ranked: RankedRow) -> None:
        self.drop(ranked.key)
        sort_value = self._sort_key(ranked.values)
        if self._horizon and self._horizon[0] < sort_value:
            return
        self._rows[ranked.key] = (sort_value, ranked.row)
        bisect.insort(self._order, (sort_value, ranked.key))
        self.size_bytes += _size(ranked.key, ranked.row)
        self._enforce_limits()

    def drop(self, key: bytes) -> None:
        dropped = self._rows.pop(key, None)
        if dropped is not None:
            del self._order[bisect.bisect_left(self._order, (dropped[0], key))]
            self.size_bytes -= _size(key, dropped[1])

    def _enforce_limits(self) -> None:
        """If a limit is exceeded, drop a third of the rows at once instead of single rows."""
        if len(self._order) > self._rows_max:
            self._cut(self._rows_max * 2 // 3)
        elif self.size_bytes > self._bytes_max and len(self._order) > 1:
            self._cut(len(self._order) * 2 // 3)

    def _cut(self, count: int) -> None:
        for _, key in self._order[count:]:
            self.size_bytes -= _size(key, self._rows.pop(key)[1])
        del self._order[count:]
        if self._order:
            self._horizon = (self._order[-1][0],)


def _size(key: bytes, row: bytes) -> int:
    return len(key) + len(row) + _OVERHEAD_BYTES
