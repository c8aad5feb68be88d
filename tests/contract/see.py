"""How a store is opened, and seen from outside, past the code under test."""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any

from headrace.model.store import Store as Declared
from headrace.views.store import Store

__all__ = ["See"]


class See(ABC):
    """One place for views, empty at first."""

    histories = 40
    """How many are tried."""
    dear = False
    """Whether a commit takes so long that fewer of them must do."""

    def __init__(self, home: Path) -> None:
        self.home = home

    @abstractmethod
    def open(self, view: str = "sales") -> Store: ...

    @abstractmethod
    def look(self, view: str = "sales") -> tuple[int, list[tuple[Any, ...]]] | None:
        """The batch of what serves, and its rows by key, as of one moment; None if nothing serves."""

    @abstractmethod
    def declared(self) -> Declared:
        """As an app ``shop`` with its data in ``home`` names the place."""

    @abstractmethod
    def opener(self) -> str:
        """For a process of its own: a module, a colon, and an expression in its names that opens view ``sales``."""

    @abstractmethod
    def close(self) -> None:
        """Leave nothing behind."""
