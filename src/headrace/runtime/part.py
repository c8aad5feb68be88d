"""One part of a running app, such as a flow or a follower, in its own thread. A failure ends only this part."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from functools import partial

from headrace.errors import HeadraceError

__all__ = ["Part", "PartFailed", "close_together"]


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
        """Wait for the part. Return whether it ended in time."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    @property
    def is_running(self) -> bool:
        return self._thread.is_alive()

    @property
    def error_code(self) -> str:
        return self.error.code if self.error is not None else ""

    def _guarded(self) -> None:
        try:
            self._run(self._stop)
        except HeadraceError as error:
            self.error = error
        except Exception as error:
            self.error = PartFailed(
                f"{self.name}: unexpected error: {type(error).__name__}: {error}",
                hint="this is a bug in headrace; run with -v to see the stack trace",
            )
            self.error.__cause__ = error


def close_together(actions: Mapping[str, Callable[[], object]], patience_s: float) -> list[str]:
    """Run all actions at the same time. Return the names of those that have not ended after ``patience_s`` seconds.

    Their errors do not count, because the process ends next.
    """
    deadline = time.monotonic() + patience_s
    parts = [Part(name, partial(_call, action), threading.Event()) for name, action in actions.items()]
    for part in parts:
        part.start()
    return [part.name for part in parts if not part.join(max(0.0, deadline - time.monotonic()))]


def _call(action: Callable[[], object], _stop: threading.Event) -> None:
    action()
