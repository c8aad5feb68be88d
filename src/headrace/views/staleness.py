"""Whether what a store has of a view can be gone on with, or must be built again from the first offset.

A part is past mending if it is of another topic (also one of the same name, made again), of another generation or
shape, if the log has deleted or never had what comes next, if it was restored from a backup that ends before what was
read, or if a deletion may have been missed (``headrace.client.tombstones``).
"""

from __future__ import annotations

from dataclasses import dataclass

from headrace.client.cluster import Cluster
from headrace.client.tombstones import Tombstones
from headrace.views.origin import Origin
from headrace.views.position import Position, Standing

__all__ = ["Retention", "retention_of", "why_build_again"]

_RESTORED = "headrace.restored"


@dataclass(frozen=True, slots=True)
class Retention(Tombstones):
    restored: tuple[tuple[int, int, int], ...] = ()
    """Time, partition, and where it ended then."""

    def why_never_there(self, position: Position) -> str | None:
        """Why what was read is not what the log has now, though it has as many records again."""
        for at_ms, number, end in self.restored:
            if position.stored_ms <= at_ms and position.offsets.get(number, 0) > end:
                return (
                    f"partition {number} of {position.topic!r} was restored from a backup that ends at {end}, and the"
                    f" view had read up to {position.offsets[number]}"
                )
        return None


def retention_of(cluster: Cluster, topic: str) -> Retention:
    configs = cluster.configs(topic)
    known = Tombstones.of(configs)
    restored = tuple(_three(one) for one in (configs.get(_RESTORED) or "").split(",") if one)
    return Retention(known.compacted, known.kept_ms, known.removed_below, restored)


def _three(text: str) -> tuple[int, int, int]:
    at_ms, number, end = map(int, text.split(":"))
    return at_ms, number, end


def why_build_again(
    cluster: Cluster, origin: Origin, standing: Standing, retention: Retention, now_ms: int
) -> str | None:
    position = standing.position
    if position.topic_id != origin.topic_id or position.progress_id != origin.progress_id:
        if position.generation != origin.number and position.progress_id == origin.progress_id:
            return f"generation {origin.number} of the flow begins"
        return f"topic {origin.topic!r} is not the one that was followed: it was made again"
    if position.generation != origin.number:
        return f"generation {origin.number} of the flow begins"
    if standing.shape.tell() != origin.shape.tell():
        return "the schema or the key has changed"
    starts = cluster.starts(origin.topic)
    ends = cluster.ends(origin.topic, committed=False)
    for number, start in starts.items():
        at, end = position.offsets.get(number, 0), ends.get(number, 0)
        if at > end:
            return f"partition {number} of {origin.topic!r} ends at {end}, and the view is at {at}"
        if at < start:
            return (
                f"records {at} to {start - 1} in partition {number} of {origin.topic!r} were deleted before they"
                " were read"
            )
    if origin.progress and position.progress_offset > cluster.ends(origin.progress, committed=False)[0]:
        return f"{origin.progress!r} ends before offset {position.progress_offset}, where the view is"
    return retention.why_never_there(position) or retention.why_missed(position, starts, now_ms)
