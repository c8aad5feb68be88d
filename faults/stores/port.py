"""The interface through which tests and fault runs use a store, independently of the code under test.

``StoreFixture`` is an empty store for the contract tests. It opens the product's store, and reads rows with the store's
own client. ``FaultyStore`` is the store of one fault run. It can be stopped, wiped and restored. ``StoreFaults`` is a
kind of store for fault runs. It creates a ``FaultyStore``, and removes a protection from the product's class.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from types import ModuleType
from typing import Any

from faults.patch import patch
from headrace.model.store import Store as Declared
from headrace.stores.writer import StoreWriter

__all__ = ["FaultyStore", "Rows", "Snapshot", "StoreFaults", "StoreFixture"]

Rows = dict[str, tuple[Any, ...]]
Snapshot = tuple[int, int, Rows]
"""Generation, batch, rows by key."""


class StoreFixture(ABC):
    """An empty store in the folder ``home`` or on a shared server."""

    histories = 20
    """The number of random histories that the contract tries."""
    is_slow = False
    """Whether a commit takes so long that the contract must try fewer cases."""

    def __init__(self, home: Path) -> None:
        self.home = home

    @abstractmethod
    def open(self, view: str = "sales") -> StoreWriter: ...

    @abstractmethod
    def read(self, view: str = "sales") -> tuple[int, list[tuple[Any, ...]]] | None:
        """Return the serving batch and its rows by key, in one snapshot, or None if no batch is served."""

    @abstractmethod
    def declared(self) -> Declared:
        """The store as an app ``shop`` with its data in ``home`` would declare it."""

    @abstractmethod
    def opener(self) -> str:
        """Return ``module:expression``. Another process evaluates the expression in the module to open ``sales``."""

    @abstractmethod
    def close(self) -> None:
        """Remove everything that the fixture created outside ``home``."""


class FaultyStore(ABC):
    address: str
    """The address for ``StoreFaults.open`` in another process."""

    @abstractmethod
    def open_snapshot_reader(self, view: str) -> AbstractContextManager[Callable[[], Snapshot | None]]:
        """Yield a function that reads one snapshot with the store's own client. It returns None if store or view is
        missing.
        """

    @abstractmethod
    def stop(self) -> None: ...

    @abstractmethod
    def start(self) -> None: ...

    @abstractmethod
    def wipe(self) -> None: ...

    @abstractmethod
    def back_up(self) -> object:
        """Return a backup of one point in time, for ``restore``."""

    @abstractmethod
    def restore(self, backup: object) -> None: ...


class StoreFaults(ABC):
    inside = "_check"
    """The method that returns after a transaction is open and the writer was accepted."""
    waits_for_zombie = False
    """Whether a successor must wait while a zombie is stopped inside its transaction."""

    @abstractmethod
    def store_class(self) -> type[Any]:
        """The product's class, imported when needed."""

    @abstractmethod
    def open(self, store_class: type[Any], address: str, view: str) -> StoreWriter: ...

    @abstractmethod
    def create(self, home: Path) -> AbstractContextManager[FaultyStore]: ...

    @abstractmethod
    def fencing_module(self) -> ModuleType:
        """The module in which the product calls ``check_fence``."""

    # Removing protections from the class

    def remove_fence(self, store_class: type[Any]) -> None:
        """Let any writer write, from whatever position it assumes."""
        patch(self.fencing_module(), "check_fence", lambda *_: None)
        self.remove_position_check(store_class)

    def remove_position_check(self, store_class: type[Any]) -> None:
        """Let an accepted writer write even if the store is no longer at the position where the writer left it."""
        expect = getattr(store_class, self.inside)

        def without_position(store: Any, connection: Any, part: Any, before: Any, fence: Any) -> Any:
            return expect(store, connection, part, None, fence)

        patch(store_class, self.inside, without_position)
