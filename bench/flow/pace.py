"""The throughput of streaming queries, measured from outside by their checkpoints.

Spark writes the end offsets of batch N to ``offsets/N``, and ``commits/N`` when the batch is done. Flows and
hand-written queries both have these files. The first part of the input is not counted, because the JVM is still
compiling the hot code.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Cost", "Mark", "Pace", "cost", "marks", "watch"]

_POLL_S = 0.01


@dataclass(frozen=True, slots=True)
class Mark:
    """A finished batch."""

    batch: int
    moment: float
    """Unix time in seconds."""
    done: int
    """Events consumed so far, by all queries."""
    cpu_s: float
    """CPU seconds used so far."""


@dataclass(frozen=True, slots=True)
class Pace:
    rate: float
    """Events per second."""
    cpu_s: float
    """CPU seconds per million events."""
    events: int
    """Counted events."""
    began: float
    """Unix time in seconds."""
    batch: int
    """The number of the last batch."""


@dataclass(frozen=True, slots=True)
class Cost:
    """The cost of a range of the input."""

    cpu_s: float
    """CPU seconds per million events."""
    rate: float
    """Events per second."""
    batches: range
    """The batches that are completely in the range."""


class _QueryProgress:
    """The finished batches of one query."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.batch = 0
        """The number of the next batch."""
        self.done = 0
        """Events consumed by the finished batches."""

    def step(self) -> float | None:
        """Return when the next batch finished, or None if it has not finished."""
        try:
            moment = (self._folder / "commits" / str(self.batch)).stat().st_mtime_ns / 1e9
        except FileNotFoundError:
            return None
        self.done = _consumed(self._folder / "offsets" / str(self.batch))
        self.batch += 1
        return moment


def marks(
    checkpoints: Path,
    total: int,
    cpu_s: Callable[[], float],
    check: Callable[[], None],
    *,
    queries: int = 1,
    timeout_s: float = 600.0,
) -> Iterator[Mark]:
    """Yield every batch of every query below ``checkpoints`` until all input is consumed. ``total`` is the number of
    events of all queries. ``check`` raises an error if no further batch can finish.
    """
    deadline = time.monotonic() + timeout_s
    progress_by_folder: dict[Path, _QueryProgress] = {}
    done = 0
    while done < total:
        if len(progress_by_folder) < queries:
            folders = (path.parent for path in checkpoints.glob("*/*/commits"))
            progress_by_folder |= {
                folder: _QueryProgress(folder) for folder in folders if folder not in progress_by_folder
            }
        stepped = False
        for progress in progress_by_folder.values():
            moment = progress.step()
            if moment is not None:
                stepped = True
                done = sum(each.done for each in progress_by_folder.values())
                yield Mark(progress.batch - 1, moment, done, cpu_s())
        if not stepped:
            check()
            if time.monotonic() > deadline:
                raise SystemExit(f"only {done} of {total} events were consumed within {timeout_s:.0f} s")
            time.sleep(_POLL_S)


def watch(
    checkpoints: Path,
    total: int,
    cpu_s: Callable[[], float],
    check: Callable[[], None],
    *,
    queries: int = 1,
    warm: float = 0.2,
    timeout_s: float = 600.0,
) -> Pace:
    """Wait until all input is consumed, and return the pace."""
    began: Mark | None = None
    for mark in marks(checkpoints, total, cpu_s, check, queries=queries, timeout_s=timeout_s):
        if began is None and mark.done >= total * warm:
            began = mark
        last = mark
    assert began is not None
    counted = last.done - began.done
    if not counted:
        raise SystemExit(f"all {total} events were consumed at once, so their rate cannot be measured")
    spent = (last.cpu_s - began.cpu_s) * 1e6 / counted
    return Pace(counted / (last.moment - began.moment), spent, counted, began.moment, last.batch)


def cost(all_marks: Iterable[Mark], low: int, high: int) -> Cost:
    """Return the cost of the events from ``low`` to ``high``, from the batches of one query that contain only these."""
    marks_inside = [mark for mark in all_marks if low <= mark.done <= high]
    if len(marks_inside) < 2:
        raise SystemExit(f"fewer than two batches are between {low} and {high} events: use smaller batches")
    first, last = marks_inside[0], marks_inside[-1]
    events = last.done - first.done
    return Cost(
        (last.cpu_s - first.cpu_s) * 1e6 / events,
        events / (last.moment - first.moment),
        range(first.batch + 1, last.batch + 1),
    )


def _consumed(offsets: Path) -> int:
    """Return the number of consumed events. All topics here start at offset 0."""
    lines = offsets.read_text(encoding="utf-8").splitlines()[2:]
    return sum(
        end
        for line in lines
        if line.startswith("{")
        for partitions in json.loads(line).values()
        for end in partitions.values()
    )
