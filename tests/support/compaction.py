"""Topics that are compacted soon, and a client during whose reads compaction replaces rows."""

from __future__ import annotations

from collections.abc import Callable

from faults.wait import until
from headrace.client.cluster import Cluster
from headrace.client.records import read

__all__ = ["COMPACTED", "FILL", "RacingCluster", "removed_below", "until_compacted"]

COMPACTED = {
    "cleanup.policy": "compact",
    "internal.segment.bytes": "2000",
    "min.cleanable.dirty.ratio": "0.001",
}
FILL = "x" * 700
"""A value so large that a few records fill a segment, because only full segments are compacted."""


class RacingCluster(Cluster):
    """Compaction overtakes the reader: after a query of a topic's end, newer rows replace the old ones."""

    overtake: Callable[[], None] | None = None

    def ends(self, topic: str, *, committed: bool = True) -> dict[int, int]:
        end_offsets = super().ends(topic, committed=committed)
        overtake, RacingCluster.overtake = RacingCluster.overtake, None
        if overtake is not None:
            overtake()
        return end_offsets


def until_compacted(cluster: Cluster, topic: str, at_most: int) -> None:
    """Wait until compaction leaves at most this number of records."""

    def remaining_records() -> int:
        ranges = {number: (0, end) for number, end in cluster.ends(topic).items()}
        return sum(1 for _ in read(cluster, topic, ranges))

    until(lambda: remaining_records() <= at_most, f"compaction of {topic}", pause_s=0.05)


def removed_below(cluster: Cluster, topic: str) -> int:
    """Return the offset below which tombstones were removed in partition 0."""
    text = cluster.configs(topic).get("headrace.tombstones.removed.below") or "0:0"
    return int(text.split(",")[0].split(":")[1])
