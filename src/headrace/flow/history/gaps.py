"""Finds input that a flow has read and that no longer exists in the log.

Retention deletes records from the start of a partition, compaction removes single records, and a topic can be deleted
and created again. A batch that read such records cannot be derived again. Each progress record has the offsets and the
number of records that its batch read, so missing records are detected.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from headrace.client.cluster import Cluster
from headrace.client.generations import progress_topic_of
from headrace.client.progress import batches
from headrace.model.declarations import Flow
from headrace.model.progress import Batch, Generation, Ranges

__all__ = [
    "MissingInput",
    "batches_through",
    "deleted_inputs",
    "input_ranges",
    "last_affected",
    "missing_through",
]

Starts = Mapping[str, Mapping[str, int]]
"""The first offset that exists, by topic and partition. The partition is text, as in progress records."""


@dataclass(frozen=True, slots=True)
class MissingInput:
    """Rows that depend on input offsets below ``before`` cannot be derived again."""

    topic: str
    partition: int
    before: int
    why: str

    def __str__(self) -> str:
        return f"unprovable before offset {self.before} of {self.topic}/{self.partition}: {self.why}"


def input_ranges(generation: Generation, after: Batch | None, through: Batch) -> Ranges:
    """Return the input offsets of all batches after ``after`` (None: from the start) up to ``through``."""
    starts = {source.log: source.starts for source in generation.inputs}
    inputs_before = after.inputs if after is not None else {}
    result: Ranges = {}
    for log, ranges in through.inputs.items():
        last_ends = {number: end for number, (_, end) in inputs_before.get(log, {}).items()}
        # A partition that was added later is read from its start.
        result[log] = {
            number: (last_ends.get(number, starts.get(log, {}).get(number, 0)), end)
            for number, (_, end) in ranges.items()
        }
    return result


def batches_through(cluster: Cluster, flow: Flow, generation: int, through: Batch) -> Iterator[Batch]:
    for batch in batches(cluster, progress_topic_of(cluster, flow, generation), generation):
        if batch.batch > through.batch:
            return
        yield batch


def deleted_inputs(cluster: Cluster, generation: Generation, through: Batch) -> tuple[Starts, str]:
    """Return the current start offsets of inputs whose first records were deleted, and the reason."""
    first_offsets: dict[str, dict[str, int]] = {}
    why = "the earlier records were deleted"
    sources = {source.log: source for source in generation.inputs}
    for log, ranges in input_ranges(generation, None, through).items():
        topic = cluster.topic(log)
        if topic is None or topic.id != sources[log].topic_id:
            first_offsets[log] = {number: high for number, (_, high) in ranges.items()}
            why = "the topic was deleted" + ("" if topic is None else " and created again")
            continue
        starts = cluster.starts(log)
        moved_starts = {
            number: starts.get(int(number), 0)
            for number, (low, high) in ranges.items()
            if low < min(high, starts.get(int(number), 0))
        }
        if moved_starts:
            first_offsets[log] = moved_starts
    return first_offsets, why


def last_affected(all_batches: Iterable[Batch], starts: Starts) -> Batch | None:
    """Return the last batch that read records before these offsets."""
    last = None
    for batch in all_batches:
        for log, ranges in batch.inputs.items():
            first = starts.get(log, {})
            if any(low < min(high, first.get(number, 0)) for number, (low, high) in ranges.items()):
                last = batch
    return last


def missing_through(last: Batch, why: str) -> tuple[MissingInput, ...]:
    """Return all input up to the end of the batch as missing."""
    return tuple(
        MissingInput(log, int(number), end, why)
        for log, ranges in sorted(last.inputs.items())
        for number, (_, end) in sorted(ranges.items(), key=lambda item: int(item[0]))
        if end
    )
