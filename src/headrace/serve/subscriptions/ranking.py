"""The first rows of a query in its order, and some more behind them, so that one that leaves is followed by the next.

It knows every row up to its horizon, which is the place of the last one that was read, and nothing of what is behind:
rows that come there are left out. So it shrinks only by rows that leave, and says when it is too short. A ranking that
has all rows has no horizon, until there are too many and the last ones are forgotten.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Iterable
from itertools import islice
from typing import Any, NamedTuple

from headrace.views.rows import Row

__all__ = ["Ranked", "Ranking"]

_OVERHEAD_BYTES = 300
"""Of a row, as Python holds it."""


class Ranked(NamedTuple):
    key: bytes
    values: Row
    row: bytes
    """As messages have it."""


class Ranking:
    """``rows`` are the first by ``sort_key``, or all there are where ``is_all``. More than ``rows_max``, or than
    ``bytes_max`` bytes, are not kept.
    """

    def __init__(
        self,
        sort_key: Callable[[Row], Any],
        rows: Iterable[Ranked],
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
        """One place, or none where nothing is behind."""
        self.size_bytes = 0
        for one in rows:
            self.put(one)
        if not is_all:
            self._cut(len(self._order))
        self._bound()

    def __len__(self) -> int:
        return len(self._order)

    def reaches(self, count: int) -> bool:
        """Whether it knows the first so many, or all there are."""
        return not self._horizon or len(self._order) >= count

    def first(self, count: int) -> dict[bytes, bytes]:
        """Rows by key, in order."""
        return {key: self._rows[key][1] for _, key in islice(self._order, count)}

    def put(self, one: Ranked) -> None:
        self.drop(one.key)
        place = self._sort_key(one.values)
        if self._horizon and self._horizon[0] < place:
            return
        self._rows[one.key] = (place, one.row)
        bisect.insort(self._order, (place, one.key))
        self.size_bytes += _size(one.key, one.row)
        self._bound()

    def drop(self, key: bytes) -> None:
        found = self._rows.pop(key, None)
        if found is not None:
            del self._order[bisect.bisect_left(self._order, (found[0], key))]
            self.size_bytes -= _size(key, found[1])

    def _bound(self) -> None:
        """By a third at once, not a row at a time."""
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
