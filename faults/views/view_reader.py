"""Continuously reads a view with the store's own client, and compares it with the rows of its batches."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from faults.stores.port import FaultyStore, Rows, Snapshot

__all__ = ["ViewReader"]

_WAIT_S_MAX = 240.0
_PAUSE_S = 0.003


class ViewReader:
    """``expected`` returns the rows after a batch of a generation."""

    def __init__(self, store: FaultyStore, view: str, expected: Callable[[int, int], Rows | None]) -> None:
        self.problems: list[str] = []
        self.reads = 0
        self._store = store
        self._view = view
        self._expected = expected
        self._at = (0, -2)
        self._resets_allowed = 0
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._read_repeatedly, daemon=True)
        self._thread.start()

    def _read_repeatedly(self) -> None:
        with self._store.open_snapshot_reader(self._view) as read:
            while not self._done.is_set():
                began = time.monotonic()
                snapshot = read()
                if snapshot is not None:
                    self.judge(snapshot)
                # Leave time for the follower to make progress, even if a read is expensive.
                time.sleep(max(_PAUSE_S, time.monotonic() - began))

    def may_go_back(self) -> None:
        """Allow the view to go back once, because the store is reset to an earlier state or created again."""
        self._resets_allowed += 1

    def judge(self, snapshot: Snapshot) -> None:
        generation, batch, rows = snapshot
        self.reads += 1
        if (generation, batch) < self._at and self._resets_allowed:
            self._resets_allowed -= 1
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
        """Wait for this batch, and return whether the view reached it."""
        deadline = time.monotonic() + _WAIT_S_MAX
        while self._at < (generation, batch):
            if time.monotonic() > deadline:
                self.problems.append(
                    f"the view stays at {self._at}, but the flow is at {(generation, batch)}"
                )
                return False
            time.sleep(0.005)
        return True

    def close(self) -> None:
        self._done.set()
        self._thread.join(_WAIT_S_MAX)
