"""Changes that are due at fixed times, whatever happens to earlier changes, so a stall counts for every change that it
delays.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable

__all__ = ["KEYS", "Ticker", "tick"]

KEYS = 1_000
"""Number of rows that change in turn, so that two changes of one row merge only for a subscriber that is far behind."""
_NOTE = "x" * 60


def tick(number: int, due_us: int) -> dict[str, str | int]:
    return {"tick_id": f"t{number % KEYS:04}", "due_us": due_us, "note": _NOTE}


class Ticker:
    """A thread that calls ``write`` with a key and a value when a change is due, or a little later, but never early."""

    def __init__(self, rate: int, write: Callable[[bytes, bytes], None]) -> None:
        self._step_us = 1_000_000 // rate
        self._write = write
        self._begin_us = time.monotonic_ns() // 1_000
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="ticker")
        self.count = 0
        self.error: BaseException | None = None

    def __enter__(self) -> Ticker:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        if self.error is not None:
            raise self.error

    def due_us(self, number: int) -> int:
        return self._begin_us + number * self._step_us

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                wait_us = self.due_us(self.count) - time.monotonic_ns() // 1_000
                if wait_us > 0:
                    time.sleep(wait_us / 1e6)
                value = tick(self.count, self.due_us(self.count))
                self._write(str(value["tick_id"]).encode(), json.dumps(value, separators=(",", ":")).encode())
                self.count += 1
        except BaseException as error:
            self.error = error
