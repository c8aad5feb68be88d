"""A page of rows, and all of them at once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from headrace.remote.columns import Columns, data_frame
from headrace.remote.position import Position

__all__ = ["Page", "Table"]

R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Page(Generic[R]):
    """Rows of one position."""

    rows: list[R]
    position: Position
    moved: bool
    """Whether the view is at another position than it was for the first page."""
    next: str | None


@dataclass(frozen=True, slots=True)
class Table:
    """Rows that were taken together, with what they are of."""

    columns: Columns
    rows: list[dict[str, Any]]
    positions: dict[str, Position]
    """By view."""

    def arrow(self) -> Any:
        """A ``pyarrow.Table``; the metadata of its schema has the positions."""
        tokens = {f"headrace.position.{view}": one.token for view, one in self.positions.items()}
        return self.columns.arrow(self.rows, tokens)

    def pandas(self) -> Any:
        """A ``pandas.DataFrame``; its ``attrs`` have the positions."""
        return data_frame(self.arrow())

    def __len__(self) -> int:
        return len(self.rows)
