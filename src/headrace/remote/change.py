"""What a subscription tells: all rows at first, then what became of them, a step at a time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from headrace.remote.position import Position

__all__ = ["Change", "LiveRows"]

R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Change(Generic[R]):
    """One step of the view, whole: from one position to another. ``whole``: the rows are all that there are, and what
    was known before is of no use; otherwise they replace those of the same key, and ``gone`` are keys without a row.
    """

    whole: bool
    rows: list[R]
    gone: list[dict[str, Any]]
    position: Position
    cursor: str
    """To go on behind it later, also in another process."""
    keys: list[tuple[Any, ...]]
    """Of the rows, in their order."""
    key: tuple[str, ...]
    """The columns of the key."""


class LiveRows(Mapping[tuple[Any, ...], R]):
    """The rows as of the last change, by key: a tuple of the key's columns."""

    def __init__(self) -> None:
        self._rows: dict[tuple[Any, ...], R] = {}
        self.position: Position | None = None
        self.cursor: str | None = None

    def apply(self, change: Change[R]) -> None:
        if change.whole:
            self._rows = {}
        self._rows.update(zip(change.keys, change.rows, strict=True))
        for gone in change.gone:
            self._rows.pop(tuple(gone[name] for name in change.key), None)
        self.position, self.cursor = change.position, change.cursor

    def __getitem__(self, key: tuple[Any, ...]) -> R:
        return self._rows[key]

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        return iter(self._rows)

    def __len__(self) -> int:
        return len(self._rows)
