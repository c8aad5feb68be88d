"""Ctrl-C and SIGTERM: the first signal ends a command at a safe point, the second signal ends it at once.

A command must commit the offsets of printed records before it ends. So the first signal only sets ``requested``, which
the command's loop checks between two batches.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
from collections.abc import Callable, Iterator
from types import FrameType, TracebackType
from typing import Any

__all__ = ["EXIT_TERMINATED", "Interrupt"]

EXIT_TERMINATED = 128 + signal.SIGTERM


class Interrupt:
    """Inside the ``with`` block, the first signal is only recorded. It takes effect when the block ends.

    With ``kill``, the second signal calls it and then ends the process without any cleanup. Without it, the second
    signal raises.
    """

    def __init__(self, kill: Callable[[], None] | None = None) -> None:
        self._kill = kill
        self._signal: int | None = None
        self._raises = False
        self._previous: dict[int, Any] = {}
        # A signal handler may not use locks, so it wakes ``wait`` through a pipe.
        self._woken, self._wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    @property
    def requested(self) -> bool:
        return self._signal is not None

    @property
    def is_ctrl_c(self) -> bool:
        """Whether the first signal came from Ctrl-C, so that a person waits for the end."""
        return self._signal == signal.SIGINT

    def wait(self, timeout_s: float) -> bool:
        """Wait for the first signal. Return whether it was received."""
        if not self.requested:
            select.select([self._woken], [], [], timeout_s)
        return self.requested

    @contextlib.contextmanager
    def raising(self) -> Iterator[None]:
        """Inside this block, the first signal raises at once. Use it for work that can be given up at any point."""
        if self._signal is not None:
            self._raise(self._signal)
        self._raises = True
        try:
            yield
        finally:
            self._raises = False

    def _record(self, number: int, frame: FrameType | None) -> None:
        if self._signal is not None:
            if self._kill is not None:
                self._kill()
                os._exit(128 + number)
            self._raise(number)
        self._signal = number
        os.write(self._wake, b".")
        if self._raises:
            self._raise(number)

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
        os.close(self._woken)
        os.close(self._wake)
        if self._signal is not None and error is None:
            self._raise(self._signal)
