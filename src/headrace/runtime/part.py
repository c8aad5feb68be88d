"""A part of a running app in a thread of its own. One that fails is told of, and the others go on."""

from __future__ import annotations

import threading
from collections.abc import Callable

from headrace.errors import HeadraceError

__all__ = ["Part", "PartFailed"]


class PartFailed(HeadraceError):
    code = "HR-RUN-PART"


class Part:
    def __init__(self, name: str, run: Callable[[threading.Event], None], stop: threading.Event) -> None:
        self.name = name
        self.error: HeadraceError | None = None
        self._run = run
        self._stop = stop
        self._thread = threading.Thread(target=self._guarded, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def join(self, timeout_s: float) -> bool:
        """Whether it has ended."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    @property
    def is_running(self) -> bool:
        return self._thread.is_alive()

    def _guarded(self) -> None:
        try:
            self._run(self._stop)
        except HeadraceError as error:
            self.error = error
        except Exception as error:
            self.error = PartFailed(
                f"{self.name} ended with something that should not have happened: {type(error).__name__}: {error}",
                hint="this is a fault in headrace; -v shows where it happened",
            )
            self.error.__cause__ = error
