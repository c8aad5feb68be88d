"""Somebody who reads a view all the time, with SQLite alone, and compares it with what the log's batches come to."""

from __future__ import annotations

import contextlib
import sqlite3
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

__all__ = ["Seen", "ViewWatch", "look"]

Rows = dict[str, tuple[Any, ...]]
Seen = tuple[int, int, Rows]
"""Generation, batch, rows by key."""
_WAIT_S_MAX = 60.0
_PAUSE_S = 0.003


def look(connection: sqlite3.Connection, view: str) -> Seen | None:
    """As of one moment; None if there is nothing to read yet."""
    try:
        connection.execute("BEGIN")
        found = connection.execute(
            "SELECT generation, batch FROM _headrace_views WHERE view = ? AND part = 'serving'", (view,)
        ).fetchone()
        rows = connection.execute(f'SELECT * FROM "{view}"').fetchall() if found else []
    except sqlite3.OperationalError:
        return None
    finally:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
    return (found[0], found[1], {row[0]: row for row in rows}) if found else None


class ViewWatch:
    """``expected`` gives the rows after a batch of a generation."""

    def __init__(self, path: Path, view: str, expected: Callable[[int, int], Rows | None]) -> None:
        self.problems: list[str] = []
        self.looks = 0
        self._path = path
        self._view = view
        self._expected = expected
        self._at = (0, -2)
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def _watch(self) -> None:
        while not self._path.exists() and not self._done.is_set():
            time.sleep(_PAUSE_S)
        if self._done.is_set():
            return
        address = f"file:{self._path}?mode=ro"
        with contextlib.closing(
            sqlite3.connect(address, uri=True, timeout=10, isolation_level=None)
        ) as connection:
            while not self._done.is_set():
                seen = look(connection, self._view)
                if seen is not None:
                    self.judge(seen)
                time.sleep(_PAUSE_S)

    def judge(self, seen: Seen) -> None:
        generation, batch, rows = seen
        self.looks += 1
        if (generation, batch) < self._at:
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
