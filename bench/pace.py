"""How fast streaming queries go, seen from outside: by their checkpoints.

Spark notes in ``offsets/N`` where batch N ends, and in ``commits/N`` that it is done; a flow and a query written by
hand both have these files. What comes before a part of the input was consumed does not count: by then the JVM has
compiled what is hot.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Cost", "Mark", "Pace", "cost", "marks", "watch"]

_LOOK_S = 0.01


@dataclass(frozen=True, slots=True)
class Mark:
    """A batch that is done."""

    batch: int
    moment: float
    """When, in seconds since 1970."""
    done: int
    """Events that were consumed by then, by all queries."""
    cpu_s: float
    """That were used by then."""


@dataclass(frozen=True, slots=True)
class Pace:
    rate: float
    """Events per second."""
    cpu_s: float
    """Per million events."""
    events: int
    """That were counted."""
    began: float
    """When, in seconds since 1970."""
    batch: int
    """The last one."""


@dataclass(frozen=True, slots=True)
class Cost:
    """Of a stretch of the input."""

    cpu_s: float
    """Per million events."""
    rate: float
    """Events per second."""
    batches: range
    """Those that it was consumed in, whole."""


class _Trail:
    """The batches of one query, as they are done."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.batch = 0
        """The next one."""
        self.done = 0

    def step(self) -> float | None:
        """When the next batch was done; nothing while it is not."""
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
    alive: Callable[[], None],
    *,
    queries: int = 1,
    timeout_s: float = 600.0,
) -> Iterator[Mark]:
    """Every batch of every query below ``checkpoints``, until all is consumed. ``total`` is of all queries together;
    ``alive`` raises if nothing more is to be expected.
    """
    deadline = time.monotonic() + timeout_s
    trails: dict[Path, _Trail] = {}
    done = 0
    while done < total:
        if len(trails) < queries:
            found = (one.parent for one in checkpoints.glob("*/*/commits"))
            trails |= {folder: _Trail(folder) for folder in found if folder not in trails}
        stepped = False
        for trail in trails.values():
            moment = trail.step()
            if moment is not None:
                stepped = True
                done = sum(one.done for one in trails.values())
                yield Mark(trail.batch - 1, moment, done, cpu_s())
        if not stepped:
            alive()
            if time.monotonic() > deadline:
                raise SystemExit(f"only {done} of {total} events were consumed within {timeout_s:.0f} s")
            time.sleep(_LOOK_S)


def watch(
    checkpoints: Path,
    total: int,
    cpu_s: Callable[[], float],
    alive: Callable[[], None],
    *,
    queries: int = 1,
    warm: float = 0.2,
    timeout_s: float = 600.0,
) -> Pace:
    """Waits until all is consumed."""
    began: Mark | None = None
    for mark in marks(checkpoints, total, cpu_s, alive, queries=queries, timeout_s=timeout_s):
        if began is None and mark.done >= total * warm:
            began = mark
        last = mark
    assert began is not None
    counted = last.done - began.done
    if not counted:
        raise SystemExit(f"all {total} events were consumed at once: there is nothing to go by")
    spent = (last.cpu_s - began.cpu_s) * 1e6 / counted
    return Pace(counted / (last.moment - began.moment), spent, counted, began.moment, last.batch)


def cost(seen: Iterable[Mark], low: int, high: int) -> Cost:
    """Of the events from ``low`` to ``high``, by the batches of one query that have nothing but them."""
    inside = [mark for mark in seen if low <= mark.done <= high]
    if len(inside) < 2:
        raise SystemExit(f"fewer than two batches lie between {low} and {high} events: take smaller ones")
    first, last = inside[0], inside[-1]
    events = last.done - first.done
    return Cost(
        (last.cpu_s - first.cpu_s) * 1e6 / events,
        events / (last.moment - first.moment),
        range(first.batch + 1, last.batch + 1),
    )


def _consumed(offsets: Path) -> int:
    """All topics here begin at offset 0."""
    lines = offsets.read_text(encoding="utf-8").splitlines()[2:]
    return sum(
        end
        for line in lines
        if line.startswith("{")
        for one in json.loads(line).values()
        for end in one.values()
    )
