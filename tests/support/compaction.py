"""Topics that compaction thins out soon, and a client that compaction overtakes."""

from __future__ import annotations

from collections.abc import Callable

from headrace.client.cluster import Cluster
from headrace.client.reading import read
from tests.support.waiting import until

__all__ = ["COMPACTED", "FILL", "RacingCluster", "removed_below", "until_compacted"]

COMPACTED = {
    "cleanup.policy": "compact",
    "internal.segment.bytes": "2000",
    "min.cleanable.dirty.ratio": "0.001",
}
FILL = "x" * 700
"""Large enough that a few records fill a segment, which can then be compacted."""


class RacingCluster(Cluster):
    """Compaction overtakes the reader: once a topic's end was asked for, newer rows come and replace what was there."""

    overtake: Callable[[], None] | None = None

    def ends(self, topic: str, *, committed: bool = True) -> dict[int, int]:
        found = super().ends(topic, committed=committed)
        overtake, RacingCluster.overtake = RacingCluster.overtake, None
        if overtake is not None:
            overtake()
        return found


def until_compacted(cluster: Cluster, topic: str, at_most: int) -> None:
    """Wait until no more records than these are left."""

    def left() -> int:
        ranges = {number: (0, end) for number, end in cluster.ends(topic).items()}
        return sum(1 for _ in read(cluster, topic, ranges))

    until(lambda: left() <= at_most, f"compaction of {topic}", pause_s=0.05)


def removed_below(cluster: Cluster, topic: str) -> int:
    """Below which offset of the first partition deletions have expired."""
    text = cluster.configs(topic).get("headrace.tombstones.removed.below") or "0:0"
    return int(text.split(",")[0].split(":")[1])
