"""Open stores, kept for the next question: each is for one thread at a time."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import TypeVar

from headrace.errors import HeadraceError
from headrace.views.asking import Asker
from headrace.views.errors import StoreError, StoreGone, StoreReplaced

__all__ = ["AskerPool"]

T = TypeVar("T")


class AskerPool:
    """``make`` opens the store; None where nothing has been made yet."""

    def __init__(self, make: Callable[[], Asker | None], kept_max: int) -> None:
        self._make = make
        self._kept_max = kept_max
        self._idle: list[Asker] = []
        self._lock = threading.Lock()
        self._closed = False

    @contextlib.contextmanager
    def asker(self) -> Iterator[Asker | None]:
        with self._lock:
            found = self._idle.pop() if self._idle else None
        asker = found or self._make()
        try:
            yield asker
        except BaseException as error:
            if isinstance(error, HeadraceError) and not isinstance(error, StoreError):
                # The question's fault, not the store's.
                self._keep(asker)
            elif asker is not None:
                asker.close()
            raise
        self._keep(asker)

    def ask(self, do: Callable[[Asker], T | None]) -> T | None:
        """None where there is nothing to ask. Tried again where the store was replaced since it was opened."""
        try:
            with self.asker() as asker:
                return None if asker is None else do(asker)
        except (StoreReplaced, StoreGone):
            # A server that was started again has ended all connections, also those of others here.
            self.clear()
            with self.asker() as asker:
                return None if asker is None else do(asker)

    def _keep(self, asker: Asker | None) -> None:
        if asker is None:
            return
        with self._lock:
            if not self._closed and len(self._idle) < self._kept_max:
                self._idle.append(asker)
                return
        asker.close()

    def clear(self) -> None:
        with self._lock:
            gone, self._idle = self._idle, []
        for one in gone:
            one.close()

    def close(self) -> None:
        self._closed = True
        self.clear()
