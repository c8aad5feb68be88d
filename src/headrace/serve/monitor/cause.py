"""Finds the bottleneck: the flow or view that causes the lag, not those that only suffer from it.

Flows and views exchange records through topics, so a slow part never blocks the parts upstream. The slow part has
unread records in its input topic. The age of a record counts from its write to that topic, so a part is not behind if
the parts upstream write its input late.

Parts that share a machine still affect each other: if one takes all the CPU, its neighbours fall behind too, but less.
So among the parts on one path, the part that is furthest behind is the cause. A part that has ended is always a cause.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

__all__ = ["PartLag", "causes"]

_BEHIND_S = 5.0
"""A part whose lag is below this never counts as behind, because a single batch can take this long."""
_LARGE_S = 30.0
"""A part with at least this lag counts as behind even while it catches up."""
_CAUGHT_UP_S = 2.0
"""A part that was a cause remains one until its lag falls below this, because lag jumps with each batch."""
_GROWTH_FACTOR_MIN = 1.02


@dataclass(frozen=True, slots=True)
class PartLag:
    """The lag and state of a flow or a view."""

    id: str
    state: Literal["working", "starting", "ended"]
    records: int | None = None
    """Unread records."""
    seconds: float | None = None
    """Age of the oldest unread record."""
    arriving_per_s: float | None = None
    taken_per_s: float | None = None

    @property
    def behind_s(self) -> float:
        """Age of the oldest unread record. If that is unknown, an estimate: the number of unread records divided by the
        arrival rate.
        """
        if not self.records:
            return 0.0
        if self.seconds is not None:
            return self.seconds
        return self.records / self.arriving_per_s if self.arriving_per_s else 0.0

    @property
    def is_growing(self) -> bool:
        if not self.arriving_per_s or self.taken_per_s is None:
            return False
        return self.arriving_per_s > self.taken_per_s * _GROWTH_FACTOR_MIN


def causes(
    part_lags: Iterable[PartLag], edges: Iterable[tuple[str, str]], before: Collection[str] = ()
) -> frozenset[str]:
    """Return the ids of the causes. ``edges`` also connect topics. ``before`` is the previous result."""
    parts = list(part_lags)
    result = {part_lag.id for part_lag in parts if part_lag.state == "ended"}
    behind = {
        part_lag.id: part_lag.behind_s for part_lag in parts if _is_behind(part_lag, part_lag.id in before)
    }
    downstream = _downstream(edges)
    for part, seconds in behind.items():
        worse = (other for other, other_s in behind.items() if other_s > seconds)
        if not any(other in downstream.get(part, ()) or part in downstream.get(other, ()) for other in worse):
            result.add(part)
    return frozenset(result)


def _is_behind(part_lag: PartLag, was_cause: bool) -> bool:
    if part_lag.state != "working":
        return False
    seconds = part_lag.behind_s
    if was_cause and seconds >= _CAUGHT_UP_S:
        return True
    return seconds >= _LARGE_S or (seconds >= _BEHIND_S and part_lag.is_growing)


def _downstream(edges: Iterable[tuple[str, str]]) -> Mapping[str, set[str]]:
    """Return, for each part, everything that derives from it directly or indirectly."""
    successors: dict[str, set[str]] = {}
    for source, target in edges:
        successors.setdefault(source, set()).add(target)
    result: dict[str, set[str]] = {}
    for source in successors:
        reached: set[str] = set()
        pending = [source]
        while pending:
            new = successors.get(pending.pop(), set()) - reached
            reached |= new
            pending += new
        result[source] = reached
    return result
