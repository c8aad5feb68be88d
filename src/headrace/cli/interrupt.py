"""Ctrl-C and SIGTERM: the first signal ends a command at a safe point, the second signal ends it at once.

A command must commit the offsets of printed records before it ends. So the first signal only sets ``requested``, which
the command's loop checks between two batches.
"""

from __future__ import annotations

import signal
from types import FrameType, TracebackType
from typing import Any

__all__ = ["EXIT_TERMINATED", "Interrupt"]

EXIT_TERMINATED = 128 + signal.SIGTERM


class Interrupt:
    """Inside the ``with`` block, the first signal is only recorded. It takes effect when the block ends."""

    def __init__(self) -> None:
        self._signal: int | None = None
        self._previous: dict[int, Any] = {}

    @property
    def requested(self) -> bool:
        return self._signal is not None

    def _record(self, number: int, frame: FrameType | None) -> None:
        if self._signal is not None:
            self._raise(number)
        self._signal = number

    @staticmethod
    def _raise(number: int) -> None:
        if number == signal.SIGINT:
            raise KeyboardInterrupt
        raise SystemExit(EXIT_TERMINATED)

    def __enter__(self) -> Interrupt:
        for number in (signal.SIGINT, signal.SIGTERM):
            self._previous[number] = signal.signal(number, self._record)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        if self._signal is not None and error is None:
            self._raise(self._signal)
