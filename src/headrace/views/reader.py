"""What a store has of its views, for somebody who only looks: nothing is made or changed by it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass

from headrace.model.source import Sources
from headrace.views.position import Shape
from headrace.views.rows import Row
from headrace.views.store import Part

__all__ = ["Known", "Reader"]


@dataclass(frozen=True, slots=True)
class Known:
    """A part of a view, as the store tells it."""

    view: str
    part: Part
    topic: str
    generation: int
    batch: int
    offsets: dict[int, int]
    dead: int
    stored_ms: int
    reason: str
    shape: Shape
    sources: Sources
    """Of a flow that writes in real time: how far its input is in it."""


class Reader(ABC):
    where: str
    """The store, as it is shown: no passwords."""

    @abstractmethod
    def known(self) -> list[Known]:
        """What there is, by name; of a view that is being rebuilt, both parts."""

    def known_of(self, view: str) -> list[Known]:
        """What there is of one view, whatever is wrong with the others."""
        return [one for one in self.known() if one.view == view]

    @abstractmethod
    def count(self, view: str) -> int:
        """Rows of what serves."""

    @abstractmethod
    def reading(self, view: str, timeout_s: float) -> AbstractContextManager[tuple[list[str], Iterator[Row]]]:
        """The names of the columns, and the rows of what serves, which are read while they are asked for."""

    @abstractmethod
    def close(self) -> None: ...
