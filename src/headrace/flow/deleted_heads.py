"""Finds what is recorded about records that were deleted before a generation begins.

Whether an event is late depends on the earlier records of its partition. If retention has deleted some of them, a new
generation cannot compute the newest event time before its first record. But earlier generations, of this flow or of
another flow of the app that reads the topic, recorded it: before and after each batch. Retention deletes within a
batch, so for the rest of that batch the new generation uses the notes about late events instead. So it finds the same
late events as the earlier generations.

Deleted records may also precede the first record of an earlier generation. Up to the end of that batch, its own newest
event times are too early, so the new generation uses what the earlier one got from its predecessor. Each generation of
a flow has a progress topic of its own, and may still run beside the others.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

import msgspec

from headrace.app import App
from headrace.client.cluster import Cluster
from headrace.client.generations import generations_in_log, progress_topic_of
from headrace.client.progress import batches
from headrace.client.records import read
from headrace.flow.rejected import LATE_HEADER
from headrace.model.declarations import Flow
from headrace.model.progress import Batch, DeletedHead, Generation, Input

__all__ = ["find_deleted_heads"]

_NOTES_MAX = 10_000
"""The maximum number of late events of a batch that are read from the notes. Of further ones, only those are found that
can be computed from the remaining records.
"""


@dataclass(frozen=True, slots=True)
class _Earlier:
    """A generation that read the topic and recorded event times."""

    flow: Flow
    generation: Generation
    source: Input

    def knows_start(self, number: str) -> bool:
        """Whether its newest event times include all records of the partition, also those that were deleted."""
        return number in self.source.deleted or not self.source.starts.get(number, 0)


def find_deleted_heads(
    cluster: Cluster, app: App, log: str, topic_id: str, starts: Mapping[str, int]
) -> dict[str, DeletedHead]:
    """Return what is known about the records before ``starts``, by partition. A partition is absent if nothing was
    deleted, or nothing is known.
    """
    wanted = {number for number, start in starts.items() if start > 0}
    if not wanted:
        return {}
    earlier = [found for flow in app.flows for found in _earlier(cluster, flow, log, topic_id)]
    heads: dict[str, DeletedHead] = {}
    # A generation that began after records were deleted, of which it knew nothing, is used only if no other is left.
    for knows_start in (True, False):
        for found in earlier:
            numbers = {number for number in wanted - heads.keys() if found.knows_start(number) is knows_start}
            heads |= _heads(cluster, found, {number: starts[number] for number in numbers})
    return heads


def _earlier(cluster: Cluster, flow: Flow, log: str, topic_id: str) -> Iterator[_Earlier]:
    """Yield the generations that recorded event times of the topic, newest first."""
    for generation in reversed(generations_in_log(cluster, flow)):
        if generation.late not in ("drop", "side"):
            continue
        for source in generation.inputs:
            if (source.log, source.topic_id) == (log, topic_id):
                yield _Earlier(flow, generation, source)


def _heads(cluster: Cluster, earlier: _Earlier, starts: Mapping[str, int]) -> dict[str, DeletedHead]:
    """Return what the generation knows about the records before ``starts``."""
    heads: dict[str, DeletedHead] = {}
    for number, start in starts.items():
        inherited = earlier.source.deleted.get(number)
        if inherited is not None and earlier.source.starts.get(number, 0) <= start < inherited.end:
            late = [offset for offset in inherited.late if offset >= start]
            heads[number] = msgspec.structs.replace(inherited, late=late)
    left = {number: start for number, start in starts.items() if number not in heads}
    by_number = dict(_batches_at(cluster, earlier, left))
    late_by_number = _late_offsets(cluster, earlier, by_number)
    for number, batch in by_number.items():
        head = _head(earlier.source, batch, number, left[number], late_by_number.get(number, ()))
        if head is not None:
            heads[number] = head
    return heads


def _batches_at(
    cluster: Cluster, earlier: _Earlier, starts: Mapping[str, int]
) -> Iterator[tuple[str, Batch]]:
    """Yield, for each partition, the first batch that read up to its start offset, or past it."""
    left = dict(starts)
    if not left:
        return
    topic = progress_topic_of(cluster, earlier.flow, earlier.generation.generation)
    for batch in batches(cluster, topic, earlier.generation.generation):
        for number, (low, high) in batch.inputs.get(earlier.source.log, {}).items():
            if number in left and low <= left[number] <= high:
                del left[number]
                yield number, batch
        if not left:
            return


def _head(source: Input, batch: Batch, number: str, start: int, late: Collection[int]) -> DeletedHead | None:
    before_us = batch.newest_us.get(source.topic, {}).get(number)
    low, high = batch.inputs[source.log][number]
    if start == low:
        return None if before_us is None else DeletedHead(before_us, start, before_us)
    at_end_us = batch.next_newest_us.get(source.topic, {}).get(number)
    if at_end_us is None:
        return None
    if start == high:
        return DeletedHead(at_end_us, start, at_end_us)
    return DeletedHead(before_us, high, at_end_us, [offset for offset in late if start <= offset < high])


def _late_offsets(
    cluster: Cluster, earlier: _Earlier, by_number: Mapping[str, Batch]
) -> dict[str, list[int]]:
    """Return the offsets of the late events of these batches, by partition."""
    topic = earlier.flow.late_topic
    wanted = {number: batch.batch for number, batch in by_number.items() if batch.late}
    found: dict[str, list[int]] = {number: [] for number in wanted}
    if not wanted or cluster.topic(topic) is None:
        return found
    # Generations that run side by side write their notes to one topic, so the notes of a batch can be anywhere.
    ranges = {0: (cluster.starts(topic)[0], cluster.ends(topic)[0])}
    for message in read(cluster, topic, ranges):
        headers = dict(message.headers() or ())
        try:
            note = msgspec.json.decode(headers.get(LATE_HEADER) or message.value() or b"", type=_Note)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            continue
        number = str(note.partition)
        is_of_batch = note.batch == wanted.get(number) and note.topic == earlier.source.log
        if is_of_batch and note.generation == earlier.generation.generation:
            offsets = found[number]
            if len(offsets) < _NOTES_MAX:
                offsets.append(note.offset)
    return found


class _Note(msgspec.Struct, frozen=True):
    topic: str
    partition: int
    offset: int
    generation: int
    batch: int
