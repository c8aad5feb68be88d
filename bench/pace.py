"""How fast a streaming query goes, seen from outside: by its checkpoint.

Spark notes in ``offsets/N`` where batch N ends, and in ``commits/N`` that it is done; a flow and a query written by
hand both have these files. What comes before a part of the input was consumed does not count: by then the JVM has
compiled what is hot.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Pace", "watch"]

_LOOK_S = 0.01


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


def watch(
    checkpoints: Path,
    total: int,
    cpu_s: Callable[[], float],
    alive: Callable[[], None],
    *,
    warm: float = 0.2,
    timeout_s: float = 600.0,
) -> Pace:
    """Waits until all is consumed. ``alive`` raises if nothing more is to be expected."""
    deadline = time.monotonic() + timeout_s
    number = done = began_at = 0
    began = began_cpu = 0.0
    while True:
        commit = next(checkpoints.glob(f"*/*/commits/{number}"), None)
        if commit is None:
            alive()
            if time.monotonic() > deadline:
                raise SystemExit(f"only {done} of {total} events were consumed within {timeout_s:.0f} s")
            time.sleep(_LOOK_S)
            continue
        moment, used = commit.stat().st_mtime_ns / 1e9, cpu_s()
        done = _consumed(commit.parents[1] / "offsets" / str(number))
        if not began and done >= total * warm:
            began, began_cpu, began_at = moment, used, done
        elif done >= total:
            counted = total - began_at
            spent = (used - began_cpu) * 1e6 / counted
            return Pace(counted / (moment - began), spent, counted, began, number)
        number += 1


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
