"""What a flow has read and the log no longer has.

Retention deletes records from the start of a partition, compaction takes out single ones, and a topic can be deleted
and made again. Either way the batches that had read such records cannot be derived again. The progress records tell
how many records a batch has read, and from where to where; so what is gone is found without guessing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from headrace.client.cluster import Cluster
from headrace.client.progress_log import batches
from headrace.model.flow import Flow
from headrace.model.progress import Batch, Generation, Ranges

__all__ = [
    "Gone",
    "between",
    "deleted",
    "gone_before",
    "last_hit",
    "through_batch",
]

Starts = Mapping[str, Mapping[str, int]]
"""Per topic of the log and partition (as text, as in progress records): the first offset that is there."""


@dataclass(frozen=True, slots=True)
class Gone:
    """What came from offsets before this one cannot be derived again."""

    topic: str
    partition: int
    before: int
    why: str

    def __str__(self) -> str:
        return f"unprovable before offset {self.before} of {self.topic}/{self.partition}: {self.why}"


def between(generation: Generation, after: Batch | None, through: Batch) -> Ranges:
    """The input offsets of all batches behind ``after`` (None for from the beginning) and up to ``through``."""
    starts = {one.log: one.starts for one in generation.inputs}
    done = after.inputs if after is not None else {}
    found: Ranges = {}
    for log, ranges in through.inputs.items():
        before = {number: to for number, (_, to) in done.get(log, {}).items()}
        # A partition that was added later was read from its beginning.
        found[log] = {
            number: (before.get(number, starts.get(log, {}).get(number, 0)), to)
            for number, (_, to) in ranges.items()
        }
    return found


def through_batch(cluster: Cluster, flow: Flow, generation: int, through: Batch) -> Iterator[Batch]:
    for batch in batches(cluster, flow.progress_topic, generation):
        if batch.batch > through.batch:
            return
        yield batch


def deleted(cluster: Cluster, generation: Generation, through: Batch) -> tuple[Starts, str]:
    """Where the event inputs begin now, if that is behind where the generation began; and why."""
    found: dict[str, dict[str, int]] = {}
    why = "the records before were deleted"
    kinds = {one.log: one for one in generation.inputs}
    for log, ranges in between(generation, None, through).items():
        there = cluster.topic(log)
        if there is None or there.id != kinds[log].topic_id:
            found[log] = {number: high for number, (_, high) in ranges.items()}
            why = "the topic was deleted" + ("" if there is None else " and made again")
            continue
        starts = cluster.starts(log)
        late = {
            n: starts.get(int(n), 0)
            for n, (low, high) in ranges.items()
            if low < min(high, starts.get(int(n), 0))
        }
        if late:
            found[log] = late
    return found, why


def last_hit(known: Iterable[Batch], starts: Starts) -> Batch | None:
    """The last batch that has read something before these offsets."""
    last = None
    for batch in known:
        for log, ranges in batch.inputs.items():
            first = starts.get(log, {})
            if any(low < min(high, first.get(number, 0)) for number, (low, high) in ranges.items()):
                last = batch
    return last


def gone_before(last: Batch, why: str) -> tuple[Gone, ...]:
    """All that was read up to the end of that batch."""
    return tuple(
        Gone(log, int(number), to, why)
        for log, ranges in sorted(last.inputs.items())
        for number, (_, to) in sorted(ranges.items(), key=lambda one: int(one[0]))
        if to
    )
