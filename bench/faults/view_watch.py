"""Somebody who reads a view all the time, by the store's own means, and compares it with what the batches come to."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from bench.faults.store_kinds import Rows, Seen, StorePlace

__all__ = ["ViewWatch"]

_WAIT_S_MAX = 240.0
_PAUSE_S = 0.003


class ViewWatch:
    """``expected`` gives the rows after a batch of a generation."""

    def __init__(self, place: StorePlace, view: str, expected: Callable[[int, int], Rows | None]) -> None:
        self.problems: list[str] = []
        self.looks = 0
        self._place = place
        self._view = view
        self._expected = expected
        self._at = (0, -2)
        self._backs = 0
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def _watch(self) -> None:
        with self._place.watching(self._view) as look:
            while not self._done.is_set():
                began = time.monotonic()
                seen = look()
                if seen is not None:
                    self.judge(seen)
                # Who is watched must get on, also where a look is dear.
                time.sleep(max(_PAUSE_S, time.monotonic() - began))

    def may_go_back(self) -> None:
        """Once: the store is put back to an earlier moment, or begun anew."""
        self._backs += 1

    def judge(self, seen: Seen) -> None:
        generation, batch, rows = seen
        self.looks += 1
        if (generation, batch) < self._at and self._backs:
            self._backs -= 1
        elif (generation, batch) < self._at:
            self.problems.append(f"the view went back from {self._at} to {(generation, batch)}")
        self._at = (generation, batch)
        expected = self._expected(generation, batch)
        if expected is not None and rows != expected:
            wrong = sorted(key for key in {*rows, *expected} if rows.get(key) != expected.get(key))
            self.problems.append(
                f"after batch {batch} of generation {generation}, {len(wrong)} rows differ: {wrong[:3]}"
            )

    def wait_for(self, generation: int, batch: int) -> bool:
        """Whether the view came there."""
        deadline = time.monotonic() + _WAIT_S_MAX
        while self._at < (generation, batch):
            if time.monotonic() > deadline:
                self.problems.append(
                    f"the view stays at {self._at}, and the flow is at {(generation, batch)}"
                )
                return False
            time.sleep(0.005)
        return True

    def close(self) -> None:
        self._done.set()
        self._thread.join(_WAIT_S_MAX)
