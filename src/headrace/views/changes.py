"""What a batch changes: per key the last row, or that it is gone. All that came before for a key is left out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any

from headrace.views.position import Shape
from headrace.views.rows import Row

__all__ = ["Changes"]


class Changes:
    def __init__(self, shape: Shape) -> None:
        places = shape.key_places
        self._single = len(places) == 1
        self._key_of: Callable[[Row], Any] = itemgetter(*places)
        self._last: dict[Any, Row | None] = {}
        self.events = 0
        """How many records there were, before those of one key became one."""

    def __len__(self) -> int:
        return len(self._last)

    def put(self, row: Row) -> None:
        self._last[self._key_of(row)] = row
        self.events += 1

    def put_all(self, rows: Sequence[Row]) -> None:
        """One after the other."""
        self._last.update(zip(map(self._key_of, rows), rows, strict=True))
        self.events += len(rows)

    def remove(self, key: Row) -> None:
        self._last[key[0] if self._single else key] = None
        self.events += 1

    @property
    def upserts(self) -> list[Row]:
        return [row for row in self._last.values() if row is not None]

    @property
    def deletes(self) -> list[Row]:
        """Keys, in the order of the view's key."""
        gone = (key for key, row in self._last.items() if row is None)
        return [(key,) for key in gone] if self._single else list(gone)
