"""Which part is the bottleneck: the one that does not keep up by itself, and not those that suffer from it.

Parts meet at topics, so nobody is held up by what comes behind. What is slow shows as records that lie unread before
it, and how long they have lain there is counted from when they were written to that very topic: a part that is given
its input late is not behind in it, it starves. What is left are parts that share a machine: where one takes all of it,
those before and behind it fall behind as well, but not as far. So of parts on one way, the one that is furthest behind
is the cause. A part that has ended is a cause in any case.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

__all__ = ["Worker", "causes"]

_LATE_S = 5.0
"""A batch may take so long without anybody being behind."""
_LARGE_S = 30.0
"""This far behind counts also for a part that is catching up."""
_STILL_S = 2.0
"""What was a cause is one until it is nearer than this: batches come in steps."""
_GROWING = 1.02


@dataclass(frozen=True, slots=True)
class Worker:
    """A flow or a view, as far as it matters here."""

    id: str
    state: Literal["working", "starting", "ended"]
    records: int | None = None
    """That it has not read yet."""
    seconds: float | None = None
    """Since the oldest of those was written."""
    arriving_per_s: float | None = None
    taken_per_s: float | None = None

    @property
    def behind_s(self) -> float:
        """Where the age is not known, as long as it takes for so many to arrive."""
        if not self.records:
            return 0.0
        if self.seconds is not None:
            return self.seconds
        return self.records / self.arriving_per_s if self.arriving_per_s else 0.0

    @property
    def is_growing(self) -> bool:
        if not self.arriving_per_s or self.taken_per_s is None:
            return False
        return self.arriving_per_s > self.taken_per_s * _GROWING


def causes(
    workers: Iterable[Worker], edges: Iterable[tuple[str, str]], before: Collection[str] = ()
) -> frozenset[str]:
    """``edges`` may lead over topics; ``before`` is what this said a moment ago."""
    known = list(workers)
    ended = {one.id for one in known if one.state == "ended"}
    behind = {one.id: one.behind_s for one in known if _is_behind(one, one.id in before)}
    ahead = _ways(edges)
    found = set(ended)
    for one, seconds in behind.items():
        worse = (other for other, its in behind.items() if its > seconds)
        if not any(other in ahead.get(one, ()) or one in ahead.get(other, ()) for other in worse):
            found.add(one)
    return frozenset(found)


def _is_behind(worker: Worker, was: bool) -> bool:
    if worker.state != "working":
        return False
    seconds = worker.behind_s
    if was and seconds >= _STILL_S:
        return True
    return seconds >= _LARGE_S or (seconds >= _LATE_S and worker.is_growing)


def _ways(edges: Iterable[tuple[str, str]]) -> Mapping[str, set[str]]:
    """Everything that derives from each, however far."""
    following: dict[str, set[str]] = {}
    for begin, end in edges:
        following.setdefault(begin, set()).add(end)
    found: dict[str, set[str]] = {}
    for begin in following:
        met: set[str] = set()
        waiting = [begin]
        while waiting:
            new = following.get(waiting.pop(), set()) - met
            met |= new
            waiting += new
        found[begin] = met
    return found
