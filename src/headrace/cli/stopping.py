"""An interrupt that waits for a good moment.

What was printed must be committed and what was begun be finished, so the first Ctrl-C or kill is only
noted; the loop asks between two batches. The second one does not wait.
"""

from __future__ import annotations

import signal
from types import FrameType, TracebackType
from typing import Any

__all__ = ["EXIT_TERMINATED", "Stopping"]

EXIT_TERMINATED = 128 + signal.SIGTERM


class Stopping:
    """Inside the block signals are noted; after it, the noted one takes effect."""

    def __init__(self) -> None:
        self._noted: int | None = None
        self._before: dict[int, Any] = {}

    @property
    def asked(self) -> bool:
        return self._noted is not None

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self._noted is not None:
            self._raise(number)
        self._noted = number

    @staticmethod
    def _raise(number: int) -> None:
        if number == signal.SIGINT:
            raise KeyboardInterrupt
        raise SystemExit(EXIT_TERMINATED)

    def __enter__(self) -> Stopping:
        for number in (signal.SIGINT, signal.SIGTERM):
            self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        if self._noted is not None and error is None:
            self._raise(self._noted)
