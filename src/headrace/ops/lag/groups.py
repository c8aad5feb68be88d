"""The consumer groups that read topics of an app.

A cluster may have many others: which ones read these topics is asked of all of them once a minute, and in between only
those are asked that did.
"""

from __future__ import annotations

from collections.abc import Collection

from headrace.client.cluster import Cluster
from headrace.client.group_asker import GroupAsker
from headrace.clock import Clock
from headrace.ops.lag.reader import Reader

__all__ = ["Groups"]

_SWEEP_S = 60.0


class Groups:
    def __init__(self, cluster: Cluster, clock: Clock) -> None:
        self._asker = GroupAsker(cluster)
        self._clock = clock
        self._swept_s: float | None = None
        self._reading: list[str] = []

    def close(self) -> None:
        self._asker.close()

    def readers(self, topics: Collection[str]) -> list[Reader]:
        """In the order of their names; only their commits in these topics."""
        now_s = self._clock.steady()
        due = self._swept_s is None or now_s - self._swept_s >= _SWEEP_S
        names = [*self._asker.listed()] if due else self._reading
        found = []
        for name, at in self._asker.committed(names).items():
            here = {place: offset for place, offset in at.items() if place[0] in topics}
            if here:
                found.append(Reader("group", name, "committed", here, committed=False))
        self._reading = [one.name for one in found]
        if due:
            self._swept_s = now_s
        return found
