"""What a fault needs of a store.

A *kind* knows the product's class and how to take a protection out of it; a *place* is one store of it, for one run:
where it is, how it is looked at past the product's code, and how it is stopped, wiped and put back.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from types import ModuleType
from typing import Any

from headrace.views.store import Store

__all__ = ["Rows", "Seen", "StoreKind", "StorePlace"]

Rows = dict[str, tuple[Any, ...]]
Seen = tuple[int, int, Rows]
"""Generation, batch, rows by key."""


class StorePlace(ABC):
    address: str
    """For ``StoreKind.open``, in another process."""

    @abstractmethod
    def watching(self, view: str) -> AbstractContextManager[Callable[[], Seen | None]]:
        """Looks as of one moment, by other means than the product's; None while there is nothing, or nobody to ask."""

    @abstractmethod
    def stop(self) -> None: ...

    @abstractmethod
    def start(self) -> None: ...

    @abstractmethod
    def wipe(self) -> None: ...

    @abstractmethod
    def keep(self) -> object:
        """A backup, of a moment."""

    @abstractmethod
    def restore(self, kept: object) -> None: ...


class StoreKind(ABC):
    inside = "_expect"
    """The method that has been through when a transaction is open and the writer was found to be the right one."""
    waits_for_zombie = False
    """Whether a successor has to wait while a zombie sleeps inside its transaction."""

    @abstractmethod
    def product(self) -> type[Any]:
        """The class of the store; imported when wanted."""

    @abstractmethod
    def open(self, product: type[Any], address: str, view: str) -> Store: ...

    @abstractmethod
    def place(self, home: Path) -> AbstractContextManager[StorePlace]: ...

    @abstractmethod
    def fencing(self) -> ModuleType:
        """Where the product asks ``refuse_stale``."""

    # Protections, taken out of the class

    def no_fence(self, product: type[Any]) -> None:
        """Whoever comes may write, from wherever it thinks that the view is."""
        vars(self.fencing())["refuse_stale"] = lambda *_: None
        self.no_position(product)

    def no_position(self, product: type[Any]) -> None:
        """Who may write does so, also where the store is not as it was left."""
        expect = getattr(product, self.inside)

        def anyhow(store: Any, connection: Any, part: Any, before: Any, fence: Any) -> Any:
            return expect(store, connection, part, None, fence)

        setattr(product, self.inside, anyhow)
