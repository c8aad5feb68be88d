"""How many letters topics have. Offsets also count the ends of transactions, so letters are counted by reading them,
each once; of a topic that has many more than were counted, offsets are all that is told.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass

from headrace.client.cluster import Cluster
from headrace.client.reading import read
from headrace.ops.lag.log_look import LogLook

__all__ = ["LetterCounts"]

_AT_ONCE_MAX = 20_000


@dataclass(slots=True)
class _Counted:
    start: int
    end: int
    letters: int


class LetterCounts:
    """For any thread; one counts at a time."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._lock = threading.Lock()
        self._known: dict[tuple[str, int], _Counted] = {}

    def count(self, topic: str, look: LogLook) -> tuple[int, bool]:
        """And whether it is exact."""
        with self._lock:
            numbers = range(look.partitions.get(topic, 0))
            found = [self._of(topic, one, look) for one in numbers]
        return sum(count for count, _ in found), all(exact for _, exact in found)

    def _of(self, topic: str, number: int, look: LogLook) -> tuple[int, bool]:
        start, end = look.starts[topic, number], look.committed_ends[topic, number]
        known = self._known.get((topic, number))
        if known is None or known.start != start or known.end > end:
            known = _Counted(start, start, 0)
        if end - known.end > _AT_ONCE_MAX:
            return max(0, end - start), False
        known.letters += sum(1 for _ in read(self._cluster, topic, {number: (known.end, end)}))
        known.end = max(known.end, end)
        self._known[topic, number] = known
        return known.letters, True
